"""The argument parser of every command: help that opens with examples, errors that suggest the nearest name."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from sremkit.config.aliases import REMOVED_OPTIONS
from sremkit.config.settings import suggestion

COMMAND_WORDS = ("srem ", "torchrun ")  # an example line of a help text begins with one of them
OTHER_EXAMPLES = ("curl ",)  # examples that are no commands of ours


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions and states every default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default in ((), [], ""):
            return action.help
        return super()._get_help_string(action)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):  # indented twice, which Python 3.11 does not count
            self._action_max_length += self._indent_increment


class Parser(argparse.ArgumentParser):
    """An argument parser whose help begins with the first paragraph and the examples of its description.

    Args:
        description: one sentence, example commands, and what else there is to say; paragraphs are separated by empty
            lines. The help shows what follows the examples after the options.
    """

    def __init__(self, *, description: str | None = None, **kwargs: Any) -> None:
        paragraphs = (description or "").strip().split("\n\n")
        kwargs = {"formatter_class": HelpFormatter, "epilog": "\n\n".join(paragraphs[2:]) or None, **kwargs}
        super().__init__(description="\n\n".join(paragraphs[:2]), **kwargs)

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_text(_with_indented_examples(self.description))
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(_with_indented_examples(self.epilog))
        return formatter.format_help()

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse does, but an unknown option is reported before a missing argument."""
        refuse_unknown_options(self, args)
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n`{self.prog} --help` shows examples and all options\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            if isinstance(action, argparse._SubParsersAction):
                known = [choice.dest for choice in action._choices_actions]  # those that the help lists
                noun = str(action.metavar).lower()
                self.error(f"there is no {noun} '{value}'; {suggestion(str(value), known)}")
            raise argparse.ArgumentError(action, f"there is no '{value}'; {suggestion(str(value), known)}")


def refuse_unknown_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """End with a sentence if an option does not exist, or no longer, in the command that the arguments name."""
    for argument in arguments:
        commands = subcommands(parser)
        if argument == "--" or "-" not in parser.prefix_chars:
            return
        if argument in commands:
            parser = commands[argument]
        elif argument.startswith("--"):
            option = argument.partition("=")[0]
            known = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
            reason = REMOVED_OPTIONS.get(parser.prog.partition(" ")[2], {}).get(option)
            if reason is not None:
                parser.error(f"'{option}' was removed, because {reason}; leave it out")
            if not any(name.startswith(option) for name in known):  # argparse accepts unique beginnings
                parser.error(f"there is no option '{option}'; {suggestion(option, known)}")


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a command's subcommands by their names; empty if it has none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and those of all subcommands that have a help page, depth first."""
    yield parser
    for child in subcommands(parser).values():
        if child.add_help:
            yield from all_parsers(child)


def examples(parser: argparse.ArgumentParser) -> list[str]:
    """The example commands of a parser's help."""
    lines = f"{parser.description or ''}\n{parser.epilog or ''}".splitlines()
    return [line for line in lines if line.startswith(COMMAND_WORDS)]


def _with_indented_examples(text: str | None) -> str | None:
    if text is None:
        return None
    lines = text.splitlines()
    return "\n".join(f"  {line}" if line.startswith(COMMAND_WORDS + OTHER_EXAMPLES) else line for line in lines)
