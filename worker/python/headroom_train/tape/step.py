"""What has become of a step."""

from __future__ import annotations

from enum import Enum
from typing import Any, Optional


class State(Enum):
    """The states of a step, in the order in which it passes through them. A step that fails may go back to the first:
    when the call that failed has been made again, whole."""

    RECORDING = "recording"  # calls are made as the script makes them
    DEFERRED = "deferred"  # something has failed, or would: results have no values until the step is run in pieces
    DONE = "done"  # the gradients have been handed back
    CLOSED = "closed"  # nobody can use what was recorded


class Step:
    """The only owner of what has become of a step: its state and its failure change only by these methods. The flags
    say what has been found out about it. Used on the thread whose calls are recorded."""

    def __init__(self) -> None:
        self.state = State.RECORDING
        self.failure: Optional[BaseException] = None  # the script's exception, for as long as something has failed
        self.preemptive = False  # its calls run in pieces straight away: batches like this one have failed before
        self.complete = False  # every module's call had finished when something failed
        self.retain = False  # the gradients that were handed back are to be used again
        self.sampled: Any = None  # what the script held when something failed: see recheck.note

    @property
    def failed(self) -> bool:
        """Whether something has failed, or would have, and has not been made good by a repetition."""
        return self.failure is not None

    @property
    def done(self) -> bool:
        return self.state is State.DONE

    @property
    def over(self) -> bool:
        return self.state in (State.DONE, State.CLOSED)

    @property
    def closed(self) -> bool:
        return self.state is State.CLOSED

    def fails(self, failure: BaseException) -> None:
        self.failure = failure
        if self.state is State.RECORDING:
            self.state = State.DEFERRED

    def repeated(self) -> None:
        """Notes that what has failed is made again, whole: the step goes on as it was recorded."""
        self.failure = self.sampled = None
        if self.state is State.DEFERRED:
            self.state = State.RECORDING

    def handed_back(self, failure: Optional[BaseException]) -> None:
        """Notes that the gradients are the script's now. ``failure`` is a copy of the step's failure: the traceback of
        the original holds the step's arguments."""
        self.state, self.failure = State.DONE, failure

    def finished(self) -> None:
        """Notes that the script's backward pass has been completed: what failed is over."""
        self.failure = None

    def closes(self) -> None:
        self.state = State.CLOSED
        self.sampled = None
