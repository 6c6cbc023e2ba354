"""What a run tells while it goes on; imports nothing, so that a command can always begin."""

from __future__ import annotations

__all__ = ["Progress"]


class Progress:
    """What a run tells while it goes on; this one keeps quiet but for warnings."""

    def stage(self, name: str, total: int | None = None, unit: str = "") -> None:
        """Say that a stage begins, with so many things to do if that is known."""

    def expect(self, total: int) -> None:
        """Say how many things the stage will have, as far as it can be told by now."""

    def advance(self, count: int) -> None:
        """Say that so many things of the stage are done."""

    def note(self, text: str) -> None:
        """Say something that is good to know."""

    def warn(self, text: str) -> None:
        """Say something that the user must know."""
        import warnings

        warnings.warn(text, stacklevel=2)

    def close(self) -> None:
        """Say that the run has ended, well or not."""
