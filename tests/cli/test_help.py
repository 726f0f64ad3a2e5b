"""Help pages open with examples that parse, mistakes get the nearest name, and shells complete."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sremkit.cli.completion import bash_script, contexts_of, fish_script
from sremkit.cli.main import COMMANDS, build_parser, main
from sremkit.cli.parser import all_parsers, examples

PARSERS = {parser.prog: parser for parser in all_parsers(build_parser())}


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", PARSERS)
def test_the_help_opens_with_an_example_of_the_command(name: str) -> None:
    lines = PARSERS[name].format_help().splitlines()
    usage = next(k for k, line in enumerate(lines) if line.startswith("usage: "))
    assert lines[0].endswith(".")
    assert any(line.startswith(f"  {name} ") or line == f"  {name}" for line in lines[:usage])


@pytest.mark.parametrize("line", [line for parser in PARSERS.values() for line in examples(parser)])
def test_every_example_parses(line: str) -> None:
    words = shlex.split(line, comments=True)
    arguments = words[words.index("sremkit") + 1 :] if words[0] == "torchrun" else words[1:]
    for sign in (">", ">>"):
        arguments = arguments[: arguments.index(sign)] if sign in arguments else arguments
    build_parser().parse_args([argument.replace("$SLURM_ARRAY_TASK_ID", "0") for argument in arguments])


def test_what_follows_the_examples_is_shown_after_the_options() -> None:
    page = PARSERS["srem export"].format_help()
    assert page.index("\nusage: ") < page.index("\n  --select") < page.index("\nkeep-list  the ids")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trian"], "srem: there is no command 'trian'; did you mean 'train'?"),
        (["bench", "method"], "srem bench: there is no bench 'method'; did you mean 'methods'?"),
        (["train", "scenes-srem", "--rusume", "x"], "there is no option '--rusume'; did you mean '--resume'?"),
        (
            ["audit", "x.csv", "--words"],
            "srem audit: '--words' was removed, because scoring of single words did not pay",
        ),
        (["export", "audits/mine", "--ouput=x"], "there is no option '--ouput'; did you mean '--out'?"),
        (["list", "method"], "argument kind: there is no 'method'; did you mean 'methods'?"),
        (["eval", "runs/x", "--split", "tset"], "argument --split: there is no 'tset'; did you mean 'test'?"),
        (["zzz"], "there is no command 'zzz'; known are: audit, bench"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(capsys, arguments: list[str], sentence: str) -> None:
    error = error_of(capsys, *arguments)
    assert sentence in error
    assert "usage:" not in error
    assert "--help` shows examples" in error


def test_names_in_recipes_are_answered_with_the_nearest(capsys) -> None:
    for arguments, near in (
        (["train", "scene-srem"], "scenes-srem"),
        (["train", "scenes-srem", "--set", "training.epoch=2"], "training.epochs"),
        (["describe", "sram"], "srem"),
        (["train", "scenes-srem", "--track", "wandbb"], "wandb"),
    ):
        assert main([*arguments, *(["--print-config"] if arguments[0] == "train" else [])]) == 2
        assert f"did you mean '{near}'?" in capsys.readouterr().err


def test_options_may_still_be_shortened_and_moved_benches_take_anything(capsys) -> None:
    assert build_parser().parse_args(["train", "--res", "x"]).resume == Path("x")
    assert main(["bench", "speed", "--anything", "1"]) == 2
    assert "python -m benchmarks.speed" in capsys.readouterr().err


def test_the_help_does_not_load_torch() -> None:
    code = "import sys; from sremkit.cli.main import main\ntry:\n main(['--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.fixture(scope="module")
def contexts() -> list:
    return list(contexts_of(build_parser(), ()))


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("srem tr", ["train"]),
        ("srem bench meth", ["methods"]),
        ("srem train scenes-srem-", ["scenes-srem-plus"]),
        ("srem train --re", ["--resume"]),
        ("srem eval --split t", ["test"]),
        ("srem noise make --protocol ", ["caption", "image", "absent", "near", "shared-word", "one-word"]),
        ("srem describe srem-p", ["srem-plus"]),
    ],
)
def test_bash_and_zsh_complete(shell: str, line: str, completed: list[str], contexts: list, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    script = tmp_path / "completion.sh"
    # What zsh's bashcompinit sets before it calls a function of bash.
    emulation = "emulate sh; setopt kshglob noshglob braceexpand\n" if shell == "zsh" else ""
    script.write_text(
        f"{bash_script(contexts, zsh=shell == 'zsh').replace('compinit && compinit', 'compinit && compinit -D')}\n"
        f"{emulation}COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _srem\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    options = ["-f"] if shell == "zsh" else ["--norc"]
    done = subprocess.run([shell, *options, script], capture_output=True, text=True, check=False)
    # In zsh the completion system selects by the beginning, not the function.
    beginning = words[-1] if shell == "zsh" else ""
    assert [word for word in done.stdout.split() if word.startswith(beginning)] == completed, done.stderr


def test_fish_completes(contexts: list, tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = tmp_path / "srem.fish"
    script.write_text(fish_script(contexts))
    for line, completed in (("srem bench meth", ["methods"]), ("srem train --resu", ["--resume"])):
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {script}; complete -C {shlex.quote(line)}"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HOME": str(tmp_path)},
        )
        assert [found.split("\t")[0] for found in done.stdout.splitlines()] == completed, done.stderr


def test_the_completion_command_prints_the_script(capsys) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("complete -o default -F _srem srem")


def test_parsers_keep_defaults_in_their_help() -> None:
    assert isinstance(PARSERS["srem eval"], argparse.ArgumentParser)
    assert "(default: test)" in PARSERS["srem eval"].format_help()
    assert set(COMMANDS) == {name.split()[1] for name in PARSERS if len(name.split()) == 2}
