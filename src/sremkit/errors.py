"""Errors that speak to the person at the keyboard.

A message says what was given, what was expected and what to do. The command line prints these
sentences without a traceback; anything else is our defect and keeps its traceback.
"""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right."""

    exit_code = 2


class DataError(UserError, ValueError):
    """The input data is not what it should be; the message names file, row and remedy."""


class MissingExtraError(UserError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class UserNotice(UserWarning):
    """A warning for the user; the command line prints its sentence alone."""


class UnknownNameError(UserError, KeyError):
    """A name that nothing is registered under; the message offers the nearest one."""

    def __str__(self) -> str:  # KeyError would print the sentence in quotation marks
        return str(self.args[0])
