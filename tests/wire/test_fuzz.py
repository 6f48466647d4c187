"""Mutated frames, fifty thousand of them: each decodes or raises one of our errors, and nothing else happens."""

import random
from collections import Counter

import pytest

import fuzz_frames

SEEDS = range(10)
FRAMES = 5000


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_mutated_frame_decodes_or_is_refused(seed):
    report = fuzz_frames.run(f"test {seed}", FRAMES)
    assert not report.failures, f"{len(report.failures)} failures, the first: {report.failures[0]}"
    assert report.frames == FRAMES
    assert report.growth_bytes <= fuzz_frames.GROWTH_BYTES_MAX


def test_a_few_mutated_frames_decode_or_are_refused():
    report = fuzz_frames.run("a few", 1000)
    assert not report.failures, f"{len(report.failures)} failures, the first: {report.failures[0]}"


def test_the_frames_are_good_before_they_are_mutated():
    counts = Counter()
    for frame in fuzz_frames.GOOD_FRAMES:
        fuzz_frames.try_frame(frame, random.Random(1), counts)
    assert {outcome for outcome in counts if outcome.startswith(("cut", "header"))} == {"cut: ok", "header: ok"}
    # Each frame is good in its own dialect; the other one may refuse it.
    assert counts["request: ok"] + counts["response: ok"] >= len(fuzz_frames.GOOD_FRAMES)


def test_every_step_is_reached_and_refuses_sometimes():
    counts = fuzz_frames.run("steps", 3000).counts
    for step in ("cut", "header", "recognise", "request", "response", "again", "stored", "scan", "open", "laid out"):
        outcomes = {outcome for outcome in counts if outcome.startswith(step + ": ")}
        assert f"{step}: ok" in outcomes
        assert step == "again" or len(outcomes) > 1, f"{step} never refused anything"


def test_the_same_seed_gives_the_same_frames():
    first, second = (random.Random("again") for _ in range(2))
    assert [fuzz_frames.mutate(first) for _ in range(200)] == [fuzz_frames.mutate(second) for _ in range(200)]
    assert fuzz_frames.run("x", 200).counts == fuzz_frames.run("x", 200).counts


def test_a_bug_would_be_reported(monkeypatch):
    def broken(frame, dialect):
        raise KeyError("planted")

    monkeypatch.setattr(fuzz_frames, "decode_request", broken)
    report = fuzz_frames.run("planted", 200)
    assert report.failures
    assert "KeyError: 'planted'" in report.failures[0]
    assert "seed planted frame " in report.failures[0]


def test_a_frame_that_takes_too_long_would_be_reported(monkeypatch):
    def busy(frame, dialect):
        while True:
            pass

    monkeypatch.setattr(fuzz_frames, "ONE_FRAME_S_MAX", 0.01)
    monkeypatch.setattr(fuzz_frames, "decode_request", busy)
    report = fuzz_frames.run("busy", 20)
    assert any("TookTooLongError" in failure for failure in report.failures)
