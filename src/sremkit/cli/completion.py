"""Print a script that completes commands, options and names in a shell.

srem completion bash >> ~/.bashrc
srem completion zsh >> ~/.zshrc
srem completion fish > ~/.config/fish/completions/srem.fish

The script is static: print it again after an update, or after installing a package with methods or recipes.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from sremkit.cli.parser import subcommands

HELP = "print a script for completion in bash, zsh or fish"
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")


def run(args: argparse.Namespace) -> None:
    from sremkit.cli.main import build_parser

    contexts = list(contexts_of(build_parser(), ()))
    print(fish_script(contexts) if args.shell == "fish" else bash_script(contexts, zsh=args.shell == "zsh"))


class Context(NamedTuple):
    """What may follow some words of a command line."""

    words: tuple[str, ...]  # such as ("bench", "methods")
    following: list[str]  # subcommands, or names of what the command takes
    options: list[str]
    values: dict[str, list[str]]  # of options with choices
    help: dict[str, str]  # of subcommands and options


def contexts_of(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[Context]:
    """The context of a command and of each of its subcommands."""
    children = {name: child for name, child in subcommands(parser).items() if child.add_help}
    options: list[str] = []
    values: dict[str, list[str]] = {}
    meanings: dict[str, str] = {}
    following = list(children)
    for action in parser._actions:
        options += action.option_strings
        meanings |= {name: (action.help or "").split(";")[0] for name in action.option_strings}
        if action.choices is not None and not isinstance(action, argparse._SubParsersAction):
            choices = [str(choice) for choice in action.choices]
            values |= dict.fromkeys(action.option_strings, choices)
            following += [] if action.option_strings else choices
        elif isinstance(action, argparse._SubParsersAction):
            meanings |= {choice.dest: choice.help or "" for choice in action._choices_actions}
        elif not action.option_strings:
            following += names_for(words, action.dest)
    yield Context(words, following, options, values, meanings)
    for name, child in children.items():
        yield from contexts_of(child, (*words, name))


def names_for(words: tuple[str, ...], argument: str) -> list[str]:
    """Registered names that a positional argument takes."""
    if words == ("train",) and argument == "recipe":
        from sremkit.config.recipes import recipe_files

        return list(recipe_files())
    if words == ("describe",) and argument == "name":
        from sremkit.describe import known_names

        return known_names()
    return []


def bash_script(contexts: list[Context], *, zsh: bool) -> str:
    """A completion function for bash; zsh runs the same one through its emulation of bash."""
    lines = ["autoload -U +X compinit && compinit", "autoload -U +X bashcompinit && bashcompinit"] if zsh else []
    lines += ["_srem() {", '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"']
    lines += ["  local named='' longer reply='' k", "  for ((k = 1; k < COMP_CWORD; k++)); do"]
    paths = "|".join(shlex.quote(" ".join(context.words)) for context in contexts if context.words)
    lines += [
        '    longer="${named:+$named }${COMP_WORDS[k]}"',
        '    case "$longer" in',
        f"      {paths}) named=$longer ;;",
    ]
    lines += ["    esac", "  done", '  case "$named:$previous" in']
    for context in contexts:
        path = " ".join(context.words)
        for option, values in context.values.items():
            lines.append(f"    {shlex.quote(f'{path}:{option}')}) reply={_quoted(values)} ;;")
    lines += ['    *) case "$named:$current" in']
    for context in contexts:
        path = " ".join(context.words)
        lines.append(f"      {shlex.quote(path + ':')}-*) reply={_quoted(context.options)} ;;")
        lines.append(f"      {shlex.quote(path + ':')}*) reply={_quoted(context.following)} ;;")
    lines += ["    esac ;;", "  esac", '  COMPREPLY=($(compgen -W "$reply" -- "$current"))', "}"]
    return "\n".join([*lines, "complete -o default -F _srem srem"])


def fish_script(contexts: list[Context]) -> str:
    """Completions of fish, with the meaning of each."""
    lines = []
    for context in contexts:
        seen = "".join(f"; and __fish_seen_subcommand_from {word}" for word in context.words)
        deeper = [other.words[-1] for other in contexts if other.words[:-1] == context.words and other.words]
        none_deeper = f"; and not __fish_seen_subcommand_from {' '.join(deeper)}" if deeper else ""
        start = f"complete -c srem -n {shlex.quote(f'true{seen}{none_deeper}')}"
        for name in context.following:
            lines.append(f"{start} -a {name} -d {shlex.quote(context.help.get(name, ''))}")
        for option in context.options:
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            values = f" -x -a {_quoted(context.values[option])}" if option in context.values else ""
            lines.append(f"{start} {kind}{values} -d {shlex.quote(context.help[option])}")
    return "\n".join(lines)


def _quoted(words: list[str]) -> str:
    return shlex.quote(" ".join(words))
