import io
import math

from rich.console import Console

from deedrl.tracking.console import ConsoleSink


def printed(metrics, stage="grpo"):
    output = io.StringIO()
    ConsoleSink(Console(file=output, width=40)).log(metrics, step=12, stage=stage)
    return output.getvalue()


def test_one_line_with_short_names_and_numbers():
    assert printed({"grpo/reward": 0.53333, "grpo/episodes": 48, "grpo/kl": None, "grpo/loss": math.nan}) == (
        "grpo 12  reward 0.5333  episodes 48  kl –  loss nan\n"
    )


def test_long_lists_are_cut_and_say_so():
    line = printed({f"grpo/m{index}": index for index in range(11)})
    assert "m7 7  +3 more" in line
    assert line.count("\n") == 1


def test_H11_escapes_and_markup_in_names_do_nothing():
    assert printed({"grpo/\x1b[2J[red]x": 1}) == "grpo 12  [red]x 1\n"
