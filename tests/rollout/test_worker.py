import asyncio
import subprocess
import sys
import threading

import pytest

from midcourse.rollout.worker import CallFailed, CallTimedOut, DaemonWorker


def test_all_calls_of_a_worker_run_in_one_thread_that_is_not_the_loops():
    async def main() -> list[int]:
        worker = DaemonWorker()
        idents = [await worker.call(threading.get_ident, timeout_seconds=5) for _ in range(3)]
        worker.leave()
        return idents

    idents = asyncio.run(main())
    assert len(set(idents)) == 1
    assert idents[0] != threading.get_ident()


@pytest.mark.parametrize(
    "error", [ValueError("x"), TimeoutError("x"), SystemExit(1), StopIteration(), asyncio.CancelledError()]
)
def test_whatever_a_call_raises_arrives_as_a_failed_call(error):
    def fail() -> None:
        raise error

    async def main() -> None:
        worker = DaemonWorker()
        try:
            await worker.call(fail, timeout_seconds=5)
        finally:
            worker.leave()

    with pytest.raises(CallFailed, match=type(error).__name__) as caught:
        asyncio.run(main())
    assert caught.value.error is error


def test_after_a_timeout_the_next_call_is_served_and_the_late_value_is_handed_over():
    release, late = threading.Event(), threading.Event()
    values = []

    def hang() -> str:
        release.wait(5)
        return "late"

    def take(value: str) -> None:
        values.append(value)
        late.set()

    async def main() -> str:
        worker = DaemonWorker()
        with pytest.raises(CallTimedOut, match=r"within 0\.05 s"):
            await worker.call(hang, timeout_seconds=0.05, if_late=take)
        answer = await worker.call(lambda: "next", timeout_seconds=5)
        release.set()
        while not late.is_set():
            await asyncio.sleep(0.005)
        worker.leave()
        return answer

    assert asyncio.run(main()) == "next"
    assert values == ["late"]


def test_a_hung_call_does_not_keep_the_process_alive():
    program = (
        "import asyncio, time\n"
        "from midcourse.rollout.worker import CallTimedOut, DaemonWorker\n"
        "async def main():\n"
        "    try:\n"
        "        await DaemonWorker().call(lambda: time.sleep(600), timeout_seconds=0.05)\n"
        "    except CallTimedOut:\n"
        "        print('gave up')\n"
        "asyncio.run(main())\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert finished.stdout == "gave up\n"
