"""The operators' token: made once, kept for those who may read it, refused if it is none."""

import stat

import pytest

from lakemq.errors import BadParameterError
from lakemq.world.admin_token import FILE_NAME, own_token, read_token

TOKEN = "a-token-of-the-operators"


def test_the_first_start_makes_a_token_that_only_its_owner_can_read(tmp_path):
    token = own_token("", "", tmp_path)
    file = tmp_path / FILE_NAME
    assert len(token) >= 40
    assert file.read_text() == token + "\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [FILE_NAME]


def test_later_starts_have_the_same(tmp_path):
    assert own_token("", "", tmp_path) == own_token("", "", tmp_path)


def test_two_brokers_have_different_ones(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert own_token("", "", tmp_path / "a") != own_token("", "", tmp_path / "b")


def test_a_start_that_was_killed_in_the_middle_does_no_harm(tmp_path):
    (tmp_path / f"{FILE_NAME}.new").write_text("half")
    token = own_token("", "", tmp_path)
    assert read_token(tmp_path / FILE_NAME) == token


def test_a_link_in_the_way_is_not_followed(tmp_path):
    target = tmp_path / "elsewhere"
    (tmp_path / f"{FILE_NAME}.new").symlink_to(target)
    own_token("", "", tmp_path)
    assert not target.exists()


def test_a_token_that_is_given_makes_no_file(tmp_path):
    assert own_token(TOKEN, "", tmp_path) == TOKEN
    (tmp_path / "given").write_text(f"  {TOKEN}\n")
    assert own_token("", str(tmp_path / "given"), tmp_path) == TOKEN
    assert [one.name for one in tmp_path.iterdir()] == ["given"]


def test_a_file_that_is_not_there_is_told_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        own_token("", str(tmp_path / "given"), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"short\n", b"two words, but long enough", b"x" * 2000, b"\xff" * 20, b"with-a-bell-\x07-inside-it"],
)
def test_a_file_without_a_token_is_refused_and_not_repeated(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(BadParameterError, match="holds no token") as caught:
        own_token("", "", tmp_path)
    assert not content or content.decode("latin-1") not in str(caught.value)
