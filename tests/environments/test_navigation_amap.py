"""The live map against a local server that answers in Amap's documented shape."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from midcourse.config import load_config, resolved_toml
from midcourse.environments.navigation import NavigationConfig, NavigationEnvironment
from midcourse.environments.navigation.amap import AmapConfig
from midcourse.environments.navigation.oracle import solve
from midcourse.environments.navigation.task_file import read_tasks
from midcourse.errors import ConfigError, DataError, EnvironmentFault
from midcourse.types import AssistantTurn, ToolCall

POI = {
    "id": "B0", "name": "Lihui Park", "type": "Scenic;Park;City Park (small)", "location": "120.294000,31.512000",
    "cityname": "Wuxi", "pname": "Jiangsu", "address": [],
}  # fmt: skip
FOUND = {"status": "1", "info": "OK", "infocode": "10000", "count": "1", "pois": [POI]}
ROUTE = {
    "status": "1",
    "info": "OK",
    "infocode": "10000",
    "route": {"paths": [{"distance": "12300", "duration": "1500"}]},
}
OTHER_POI = POI | {"id": "B1", "name": "Nanchan Temple", "location": "120.305000,31.561000"}
LINE = {
    "split": "train",
    "order_level": 3,
    "query": "From Lihui Park to Nanchan Temple, please.",
    "route": [
        {"name": poi["name"], "region": poi["cityname"], "coordinates": poi["location"]} for poi in (POI, OTHER_POI)
    ],
}
BUSY = {"status": "0", "info": "CUQPS_HAS_EXCEEDED_THE_LIMIT", "infocode": "10021"}


class Service:
    """Answers with `script` entries in turn, the last for good; an entry is (HTTP status, JSON)."""

    def __init__(self):
        self.script, self.requests = [(200, FOUND)], []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                url = urlsplit(self.path)
                service.requests.append((url.path, {key: value[0] for key, value in parse_qs(url.query).items()}))
                status, answer = service.script.pop(0) if len(service.script) > 1 else service.script[0]
                if answer == "slow":
                    time.sleep(0.5)
                body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # the client gave up waiting
                    self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def service():
    service = Service()
    yield service
    service.server.shutdown()
    service.server.server_close()


@pytest.fixture
def live(service, monkeypatch):
    monkeypatch.setenv("TEST_AMAP_KEY", "a-secret")
    config = AmapConfig(
        base_url=service.url, key_variable="TEST_AMAP_KEY", retry_wait_seconds=0, requests_per_second=200,
        timeout_seconds=0.2,
    )  # fmt: skip
    built = config.build()
    yield built
    built.close()


def test_search_asks_the_documented_endpoint_and_reads_the_answer(service, live):
    (place,) = live.search("Lihui Park", "Wuxi")
    assert (place.name, place.region, place.coordinates, place.category) == (
        "Lihui Park", "Wuxi", "120.294000,31.512000", "City Park small",
    )  # fmt: skip
    path, parameters = service.requests[0]
    assert path == "/v3/place/text"
    assert parameters == {
        "keywords": "Lihui Park", "city": "Wuxi", "citylimit": "true", "key": "a-secret", "output": "JSON",
    }  # fmt: skip


def test_around_and_direction_ask_the_documented_endpoints(service, live):
    live.around((120_294_000, 31_512_000), 3000, keyword="park")
    service.script = [(200, ROUTE)]
    assert live.route(["1,2", "3,4", "5,6"], mode="driving") == "Route found: driving, 3 stops, 12.3 km, 25 min."
    (around_path, around), (route_path, route) = service.requests
    assert (around_path, around["location"], around["radius"]) == ("/v3/place/around", "120.294000,31.512000", "3000")
    assert (route_path, route["origin"], route["waypoints"]) == ("/v3/direction/driving", "1,2", "3,4")


def test_an_episode_runs_on_the_live_map(service, live):
    environment = NavigationEnvironment(NavigationConfig(profile="full", train_tasks=1, test_tasks=1), world=live)
    episode = environment.start(environment.tasks("train")[0], seed=0)
    found = episode.act(AssistantTurn(tool_calls=[ToolCall("poi_search", {"address": "Lihui Park"})]))
    assert "120.294000,31.512000" in found.results[0].content
    service.script = [(200, ROUTE)]
    arguments = {"origin": POI["location"], "destination": POI["location"]}
    assert episode.act(AssistantTurn(tool_calls=[ToolCall("direction", arguments)])).done
    assert episode.score() == 0.0


def test_no_poi_found_is_an_error_result(service, live):
    service.script = [(200, FOUND | {"pois": []})]
    environment = NavigationEnvironment(NavigationConfig(profile="full", train_tasks=1, test_tasks=1), world=live)
    episode = environment.start(environment.tasks("train")[0], seed=0)
    (result,) = episode.act(AssistantTurn(tool_calls=[ToolCall("poi_search", {"address": "Lihui"})])).results
    assert result.is_error
    assert "No POI data" in result.content


@pytest.mark.parametrize("trouble", [(200, BUSY), (503, {}), (200, "not json"), (200, "slow")])
def test_passing_trouble_is_retried_and_lasting_trouble_is_a_fault(service, live, trouble):
    service.script = [trouble, trouble, (200, FOUND)]
    assert len(live.search("Lihui Park")) == 1
    service.script = [trouble]
    with pytest.raises(EnvironmentFault, match="3 tries") as caught:
        live.search("Lihui Park")
    assert "a-secret" not in str(caught.value)
    assert len(service.requests) == 6


def test_a_refused_key_is_a_fault_at_once_and_a_refused_request_goes_back_to_the_policy(service, live):
    service.script = [(200, {"status": "0", "info": "INVALID_USER_KEY", "infocode": "10001"})]
    with pytest.raises(EnvironmentFault, match="INVALID_USER_KEY"):
        live.search("Lihui Park")
    service.script = [(200, {"status": "0", "info": "INVALID_PARAMS", "infocode": "20000"})]
    with pytest.raises(ValueError, match="INVALID_PARAMS"):
        live.search("Lihui Park")
    assert len(service.requests) == 2


def test_requests_keep_to_the_rate(service, monkeypatch):
    monkeypatch.setenv("TEST_AMAP_KEY", "a-secret")
    config = AmapConfig(base_url=service.url, key_variable="TEST_AMAP_KEY", requests_per_second=20)
    live = config.build()
    started = time.monotonic()
    for _ in range(4):
        live.search("Lihui Park")
    live.close()
    assert time.monotonic() - started >= 0.149


def test_a_missing_key_names_the_variable(monkeypatch):
    monkeypatch.delenv("TEST_AMAP_KEY", raising=False)
    with pytest.raises(ConfigError, match="TEST_AMAP_KEY"):
        AmapConfig(key_variable="TEST_AMAP_KEY").build()


def write_tasks(path, *lines):
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    return str(path)


def test_the_backend_is_chosen_by_a_setting_and_plays_the_tasks_of_a_file(service, monkeypatch, tmp_path):
    monkeypatch.setenv("TEST_AMAP_KEY", "a-secret")
    test_line = LINE | {"split": "test", "query": "Nanchan Temple after Lihui Park", "order_level": 4, "tags": ["easy"]}
    file = write_tasks(tmp_path / "tasks.jsonl", LINE, test_line)
    settings = {"base_url": service.url, "key_variable": "TEST_AMAP_KEY", "requests_per_second": 200}
    overrides = [
        *("environment.profile=full", "environment.backend=amap", f'environment.tasks_file="{file}"'),
        *(f"environment.amap.{name}={json.dumps(value)}" for name, value in settings.items()),
        *("policy.path=some/model", "policy.chat=chatml"),
    ]
    config = load_config(None, overrides)
    resolved = tmp_path / "config.toml"
    resolved.write_text(resolved_toml(config), encoding="utf-8")
    assert load_config(resolved) == config
    assert "a-secret" not in resolved.read_text(encoding="utf-8")
    environment = config.environment.build()
    (task,) = environment.tasks("train")
    assert environment.tasks("test")[0].tags == ("easy", "order:4", "places:2")
    with pytest.raises(ConfigError, match="known: test, train"):
        environment.tasks("ood")
    assert environment.counterfactual(task) is None
    service.script = [(200, FOUND), (200, FOUND | {"pois": [OTHER_POI]}), (200, ROUTE)]
    episode = environment.start(task, seed=0)
    assert [len(message.tool_calls) for message, _ in solve(episode, task)] == [2, 1]
    assert episode.score() == 1.0
    assert [path for path, _ in service.requests] == ["/v3/place/text"] * 2 + ["/v3/direction/driving"]


FULL_AMAP = ["environment.profile=full", "environment.backend=amap", "policy.path=some/model", "policy.chat=chatml"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["environment.backend=amap"], r'profile = "nano".*set environment.profile = "full"'),
        (FULL_AMAP, "needs environment.tasks_file"),
        ([*FULL_AMAP, "environment.tasks_file=x", "environment.train_tasks=3"], "train_tasks is not used with .*amap"),
        (["environment.tasks_file=x"], "tasks_file is not used with .*atlas"),
        (["environment.amap.retries=5"], "amap is not used with .*atlas"),
        (["environment.backend=google"], "expected 'atlas' or 'amap'"),
        (["environment.amap.key=secret"], "unknown setting"),
    ],
)
def test_settings_that_do_not_go_together_are_errors(overrides, expected):
    with pytest.raises(ConfigError, match=expected):
        load_config(None, overrides)


def test_a_missing_key_is_told_when_the_environment_is_built(monkeypatch, tmp_path):
    monkeypatch.delenv("AMAP_KEY", raising=False)
    file = write_tasks(tmp_path / "tasks.jsonl", LINE)
    config = load_config(None, [*FULL_AMAP, f'environment.tasks_file="{file}"'])
    with pytest.raises(ConfigError, match=r"environment.amap.key_variable: .* AMAP_KEY must hold"):
        config.environment.build()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "holds no task"),
        ([LINE, LINE], "line 2: an earlier line has the same query"),
        ([LINE | {"order_level": 5}], "line 1, order_level: "),
        ([LINE | {"answer": 1}], "line 1, answer: "),
        ([LINE | {"query": "From Lihui Park"}], "it lacks Nanchan Temple"),
        ([LINE | {"route": LINE["route"][:1]}], "line 1, route: "),
        ([LINE | {"route": [LINE["route"][0]] * 2}], "different names"),
        ([LINE | {"route": [LINE["route"][0] | {"coordinates": "31.5"}] * 2}], "coordinates must be"),
        ([[]], "line 1: "),
    ],
)
def test_a_task_file_with_a_mistake_names_the_line(lines, expected, tmp_path):
    config = NavigationConfig(profile="full", backend="amap", tasks_file=write_tasks(tmp_path / "tasks.jsonl", *lines))
    with pytest.raises(DataError, match=expected):
        config.build()


def test_a_byte_order_mark_and_a_line_separator_in_a_query_break_no_line(tmp_path):
    file = tmp_path / "tasks.jsonl"
    line = LINE | {"query": LINE["query"] + "\u2028Please."}
    file.write_text("\ufeff" + json.dumps(line, ensure_ascii=False) + "\r\n", encoding="utf-8", newline="")
    assert [task.query for task in read_tasks(file)] == [line["query"]]


def test_a_missing_task_file_is_named(tmp_path):
    config = NavigationConfig(profile="full", backend="amap", tasks_file=str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read"):
        config.build()
