"""What the policy and the roles are told about this domain."""

from midcourse.environments.agentbench_os.episode import MAX_TURNS
from midcourse.environments.base import RoleGuide

SYSTEM_PROMPT = (
    "You work on a Linux system of your own, as root, in bash. You are asked a question about it, or to change it. Run "
    "scripts with bash_action: they run one after another in one shell, so that its folder and variables stay. A "
    "script may take a few seconds, long output is cut, and nothing can be typed in while it runs. There is no "
    "network. When you know the answer, call answer_action with exactly what was asked for, a single number for "
    "example, and no sentence. Where no answer is asked for, do what is asked and call finish_action. Look before you "
    f"rely on how things are. You have {MAX_TURNS} turns."
)

ERROR_TYPES = (
    "wrong_path",
    "wrong_condition",
    "wrong_option",
    "wrong_count",
    "hidden_or_nested_files_missed",
    "wrong_permission_or_owner",
    "changed_too_much",
    "no_change_made",
    "waits_for_input",
    "invalid_syntax",
    "answered_too_early",
    "wrong_answer_form",
    "repeated_command",
)

ROLE_GUIDE = RoleGuide(
    hard_rules=(
        "Paths, names and values come from the task or from earlier output.",
        "A question is answered from output, not from what systems usually look like; nothing is changed for it.",
        "A change touches what was asked for and nothing else; what cannot be undone is done only when it was checked "
        "or is plain from the task.",
        "answer_action and finish_action are final: they come after the answer was seen, or after the change was made.",
        "An answer is the bare value that was asked for.",
        "A command that failed is changed before it is tried again; none waits for input or runs without end.",
        "Looking first, taking several steps, another correct command and style are no errors.",
    ),
    error_types=ERROR_TYPES,
    verifier_rejects=(
        "Speaks of a reference, a check or a known answer, or uses a value that nothing visible shows.",
        "Claims the output of a command that was not run or has not answered yet.",
        "Answers a question before output shows the answer.",
        "Changes or deletes what the task does not speak of.",
    ),
    verifier_allows=(
        "Looks at folders, files or settings once more.",
        "Checks a change that was made.",
        "Writes the same command in another way.",
    ),
    forbidden_phrases=(
        "ground truth",
        "groundtruth",
        "reference answer",
        "reference script",
        "expected answer",
        "check script",
        "example script",
    ),
)
