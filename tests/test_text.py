"""Text from files and peers: what of it reaches errors and events."""

from celu.errors import CheckpointError, DataError, PeerFailed
from celu.events import CheckpointDamaged, LinkDown, Restarted, Warned
from celu.text import printable, printable_lines

HOSTILE = "a\x1b]0;owned\x07\x9b31m\u202e\rb"
HARMLESS = "a?]0;owned??31m??b"


def test_what_is_not_printable_becomes_a_question_mark() -> None:
    assert printable(HOSTILE) == printable_lines(HOSTILE) == HARMLESS
    assert printable_lines("a\n\x1bb\n") == "a\n?b\n"
    assert printable("größe 数") == printable_lines("größe 数") == "größe 数"


def test_a_peers_text_is_truncated() -> None:
    assert printable("x" * 5000) == "x" * 1000


def test_an_error_that_quotes_a_file_cannot_control_a_terminal() -> None:
    for error in (DataError(HOSTILE), PeerFailed(HOSTILE), CheckpointError(HOSTILE, shared=True)):
        assert str(error) == HARMLESS
        assert error.public().isprintable()
    assert str(DataError("two\nlines")) == "two\nlines"


def test_an_event_that_quotes_a_file_or_a_peer_cannot_control_a_terminal() -> None:
    for event in (
        Warned(message=HOSTILE),
        LinkDown(peer="weather", reason=HOSTILE),
        Restarted(message=HOSTILE),
        CheckpointDamaged(round=1, why=HOSTILE),
    ):
        assert HARMLESS in event.fields.values()
