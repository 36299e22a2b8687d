"""The errors that tf_interop raises. An argument of a wrong kind or value raises ValueError."""

INSTALL_TENSORFLOW = "pip install 'tensorflow==2.21.*' (with a GPU: 'tensorflow[and-cuda]==2.21.*')"
"""What to do where TensorFlow is missing."""


class TfInteropError(Exception):
    """Base of every error of this package."""

    @property
    def on_command_line(self) -> str:
        """The message as a command shows it, without words of Python."""
        return str(self)


class GraphError(TfInteropError):
    """A GraphDef that is not well-formed: a missing input, a duplicate name, a cycle."""


class PlanError(TfInteropError):
    """A plan that cannot be read, is not legal, or belongs to another graph."""


class ProfileError(TfInteropError):
    """A profile that cannot be read, or was measured on another device or software version."""


class ForeignProfileError(ProfileError):
    """A profile of another device or software version, which the user may allow."""

    def __init__(self, difference: str, where: str) -> None:
        """Makes the error.

        Args:
            difference: what was expected and what there is, as a sentence.
            where: what to measure on instead, such as `here`.
        """
        super().__init__(difference, where)
        self._difference = difference
        self._where = where

    def __str__(self) -> str:
        """The message, with the argument that allows it."""
        return self._allowed_by("allow_foreign_profile=True (in a command --allow-foreign-profile)")

    @property
    def on_command_line(self) -> str:
        """The message, with the option that allows it."""
        return self._allowed_by("--allow-foreign-profile")

    def _allowed_by(self, what: str) -> str:
        return f"{self._difference} Measure {self._where}, or pass {what} to use this one anyway."


class TimeLimitError(TfInteropError):
    """The graph pass took longer than it may."""


class LibraryError(TfInteropError):
    """The compiled library is missing, does not load, or was built for another TensorFlow."""


class BenchmarkError(TfInteropError):
    """A benchmark's results that cannot be read, or were measured elsewhere or otherwise."""
