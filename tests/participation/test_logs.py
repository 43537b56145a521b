"""Logs as devices write them: names, times, intervals, matrices, data frames."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.checks import InvalidInput
from fedstale.participation import Bootstrap, Trace, frequencies, summarise
from fedstale.participation.log_times import duration


def rounds_of(trace: Trace) -> list[list[str]]:
    return [[trace.name(int(i)) for i in trace.available(0, t)] for t in range(trace.num_rounds)]


def test_a_matrix_knows_what_is_not_known() -> None:
    trace = Trace.from_matrix(["10?", "1?0", "0?1"], names=["a", "b", "c"])
    assert rounds_of(trace) == [["a"], ["a"], ["c"]]
    np.testing.assert_array_equal(trace.known(), [[1, 1, 0], [1, 0, 1], [1, 0, 1]])
    np.testing.assert_array_equal(trace.known_rounds(), [3, 1, 2])
    # In the replay an unknown round is an absence; the frequency is of what is known.
    np.testing.assert_allclose(trace.probabilities(), [2 / 3, 0, 1 / 3])
    np.testing.assert_allclose(frequencies(trace).probabilities, [2 / 3, 0, 1 / 2])
    same = Trace.from_matrix(np.array([[1, 0, np.nan], [1, -1, 0], [0, -1, 1]]))
    np.testing.assert_array_equal(same.known(), trace.known())
    assert Trace.from_matrix(np.eye(2, dtype=bool)).unknown is None


@given(st.integers(1, 6), st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_matrix_is_kept_by_csv_and_by_choosing(tmp_path_factory, rounds, clients, random) -> None:  # type: ignore[no-untyped-def]
    lines = ["".join(random.choice("01?") for _ in range(clients)) for _ in range(rounds)]
    trace = Trace.from_matrix(lines)
    file = tmp_path_factory.mktemp("log") / "log.csv"
    trace.to_csv(file)
    for again in (Trace.from_csv(file), trace.subset(np.arange(clients))):
        np.testing.assert_array_equal(again.matrix(), trace.matrix())
        np.testing.assert_array_equal(again.known(), trace.known())
    twice = trace.subset([clients - 1, clients - 1])
    np.testing.assert_array_equal(twice.matrix(), trace.matrix()[:, [-1, -1]])


@pytest.mark.parametrize("bad", [[[1, 0], [1]], ["10", "1"], ["12"], [[0.5]], [1, 0], [["a"]]])
def test_a_bad_matrix_is_refused(bad: object) -> None:
    with pytest.raises(InvalidInput, match="matrix"):
        Trace.from_matrix(bad)


def test_intervals_count_by_the_share_of_a_round() -> None:
    # Round 0 is 10:00 to 10:30. a: 25 of 30 minutes, then 20; b: 29 of the second; overlapping intervals are one.
    trace = Trace.from_intervals(
        ["a", "b", "a", "a"],
        ["2026-01-01 10:05", "2026-01-01 10:31", "2026-01-01 11:00", "2026-01-01 11:10"],
        ["2026-01-01 10:50", "2026-01-01 11:02", "2026-01-01 11:12", "2026-01-01 11:14"],
        "30min",
    )
    assert rounds_of(trace) == [["a"], ["a", "b"], []]
    assert (trace.round_seconds, trace.start_seconds, trace.rounds_per_day) == (1800.0, 36000.0, 48)
    strict = Trace.from_intervals(["a"], [0], [1750], 1800, least=0.99)
    assert rounds_of(strict) == [[]]
    assert rounds_of(Trace.from_intervals(["a"], [0], [1], 1800, least=0.0)) == [["a"]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(0, 90)), min_size=1, max_size=20))
def test_intervals_against_counting_minutes(intervals: list[tuple[int, int, int]]) -> None:
    devices, starts, lengths = (list(column) for column in zip(*intervals, strict=True))
    ends = [a + b for a, b in zip(starts, lengths, strict=True)]
    trace = Trace.from_intervals(devices, np.multiply(starts, 60), np.multiply(ends, 60), "30min")
    first = round(trace.start_seconds / 60)
    assert first % 30 == 0 or (first == min(starts) and trace.num_rounds == 1)
    there = np.zeros((trace.num_clients, 400 + 90), dtype=bool)
    for device, a, b in zip(devices, starts, ends, strict=True):
        there[list(trace.names or ()).index(str(device)), a:b] = True
    for t in range(trace.num_rounds):
        minutes = there[:, first + 30 * t : first + 30 * (t + 1)].sum(axis=1)
        np.testing.assert_array_equal(trace.matrix()[t], minutes >= 15)


LOG = """# a log of two phones
time;phone;battery
2026-11-18 23:40:00;phone-10;90
2026-11-18 23:50:00;phone-2;80
2026-11-19 00:10:00;phone-2;70
"""


def test_a_file_with_names_and_times(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(LOG, encoding="utf-8")
    trace = Trace.from_csv(file, round="30min")
    assert trace.names == ("phone-2", "phone-10")
    assert rounds_of(trace) == [["phone-2", "phone-10"], ["phone-2"]]
    more = Trace.from_csv(file, 3, num_rounds=4, round="30min")
    assert more.name(2) == "not in the log 1"
    np.testing.assert_allclose(more.probabilities(), [0.5, 0.25, 0.0])
    file.write_text("start,end,device\n0,3600,x\n1800,5400,y\n", encoding="utf-8")
    assert rounds_of(Trace.from_csv(file, round="30min")) == [["x"], ["x", "y"], ["y"]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (LOG, {}, "give the length of a round"),
        (LOG, {"round": "soon"}, "round = 'soon'"),
        (LOG, {"round": "30min", "num_clients": 1}, "2 devices"),
        ("round,client\n0,1\n", {"round": "30min"}, "the log has no times"),
        ("time,device\nyesterday,a\n", {"round": "1h"}, "time 1 = 'yesterday'"),
        ("time,device\n5,\n", {"round": "1h"}, "line 2.*device is missing"),
        ("time,device\n5,a,3\n", {"round": "1h"}, "line 2.*must have 2 columns"),
        ("time,device\n", {"round": "1h"}, "no line but the header"),
        ("time,device\n2026-01-01T00:00Z,a\n2026-01-01T00:00,b\n", {"round": "1h"}, "with and without a time zone"),
        ("timestamp,device\n1763330400000,a\n", {"round": "1h"}, 'time 1 = .*milliseconds.*unit="ms"'),
        ("timestamp,device\n1763330400,a\n", {"round": "1h", "unit": "min"}, "unknown unit 'min'"),
        ("timestamp,device\n2026-01-01,a\n", {"round": "1h", "unit": "ms"}, "is for times that are numbers"),
        ("start,end,device\n2026-01-01 00:00,2026-01-01 01:00Z,a\n", {"round": "1h"}, "starts are times without"),
        ("start,end,device\n5,2026-01-01 01:00,a\n", {"round": "1h"}, "starts are numbers"),
        ("time,device\n5,a\n2026-01-01 01:00,a\n", {"round": "1h"}, "must be times of one kind"),
        ("round,device\n0,a\nlast,b\n", {}, "round 2 = 'last'"),
        ("round,device\n0,a\n", {"round": "1h"}, "the log has no times"),
        ("round,device\n0,a\n1,\n", {}, "line 3.*device is missing"),
        ("start,end,device\n5,2,a\n", {"round": "1h"}, "ends before it begins"),
        ("start,end,device\n0,7e9,a\n", {"round": "1s"}, "choose a longer one"),
        ("device,time,timestamp\na,1,2\n", {"round": "1h"}, "columns = 'time and timestamp': each could be the time"),
        ("id,device,time\n1,a,2\n", {"round": "1h"}, "columns = 'device and id': each|columns = 'id and device': each"),
        ("device,date,time,at\na,2026-11-18,4:00,5\n", {"round": "1h"}, "columns = 'date and time and at'"),
        ("device,date,time\na,2026-11-18,2026-11-18 04:00\n", {"round": "1h"}, "time 1 = .*two columns"),
        ("device,date,hour\na,46344,4\n", {"round": "1h"}, "time 1 = '46344 4': its date and its clock"),
        ("device,date,hour\na,2026-11-18,25\n", {"round": "1h"}, "time 1 = '2026-11-18 25:00'"),
        ("device,time,online\na,5,1\nb,5,0\n", {"round": "1h"}, "line 3 = 'b,5,0': by its online .* is not there"),
        ("device,start,end,State\na,5,9,off\n", {"round": "1h"}, "line 2 = .*: by its State"),
        ("round,client,available\n0,1,true\n0,2,False\n", {}, "line 3 = '0,2,False': by its available"),
        ("device,time\na,20261116\nb,20261117\n", {"round": "1h"}, "time 1 = .*look like dates"),
        ("device,time\na,46342.92\nb,46343\n", {"round": "1h"}, "time 1 = .*days of a spreadsheet"),
        (
            "user,seen_at\na,2026-11-16\n",
            {},
            r"header = 'user,seen_at': needs .*missing: device \(or client, id, .*time",
        ),
        ("device,when\na,2026-11-16\n", {"round": "1h"}, r"missing: time \(or timestamp, datetime, date, at\)$"),
        ("device,start\na,5\n", {"round": "1h"}, r"needs the columns device, start and end, .*missing: end \(or stop"),
        ("round,who\n0,1\n", {}, r"needs the columns round and device; missing: device \(or client"),
        ("", {"round": "1h"}, "holds no line$"),
        ("round;client\n0;x\n", {}, "line 2 = '0;x': must be two integers, round;client"),
    ],
)
def test_a_wrong_log_is_one_clear_line(tmp_path: Path, text: str, options: dict[str, object], message: str) -> None:
    file = tmp_path / "log.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=message) as caught:
        Trace.from_csv(file, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_times_of_every_kind_are_the_same() -> None:
    start = datetime(2026, 3, 1, 5, tzinfo=UTC)
    times = [start, start + timedelta(hours=2)]
    kinds = [
        times,
        [moment.isoformat() for moment in times],
        [moment.timestamp() for moment in times],
        [str(moment.timestamp()) for moment in times],
        np.array([moment.replace(tzinfo=None) for moment in times], dtype="datetime64[s]"),
    ]
    for kind in kinds:
        trace = Trace.from_intervals(["a", "b"], kind, kind, "1h", least=0.0)
        assert rounds_of(trace) == [["a"], [], ["b"]]
        assert trace.start_seconds == 5 * 3600


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"device": ["a", "b"], "time": pandas.to_datetime(["2026-01-01 00:10", "2026-01-01 01:00"])}
    )
    assert rounds_of(Trace.from_pandas(frame, "30min")) == [["a"], [], ["b"]]
    assert rounds_of(Trace.from_pandas(frame, "30min", names=["c", "b", "a"])) == [["a"], [], ["b"]]
    pairs = pandas.DataFrame({"round": [0, 2], "client": [1, 0]})
    assert rounds_of(Trace.from_pandas(pairs)) == [["1"], [], ["0"]]
    with pytest.raises(InvalidInput, match="not among the names"):
        Trace.from_pandas(frame, "30min", names=["a"])
    with pytest.raises(InvalidInput, match="needs the columns"):
        Trace.from_pandas(pandas.DataFrame({"x": [1]}), "30min")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30min", 1800),
        ("1 h", 3600),
        ("2 days", 172800),
        ("90s", 90),
        (5, 5),
        ("2 minutes", 120),
        ("1h30min", 5400),
        ("1 hour 30 minutes", 5400),
        ("90", 90),
        (timedelta(hours=1), 3600),
        (np.timedelta64(5, "m"), 300),
    ],
)
def test_lengths_of_time(text: object, seconds: float) -> None:
    assert duration("round", text) == seconds


@pytest.mark.parametrize("bad", ["", "h", "-3min", "0s", "3 weeks", "500ms", "1h30", "1 2", None, float("nan")])
def test_lengths_that_are_none(bad: object) -> None:
    with pytest.raises(InvalidInput, match="round"):
        duration("round", bad)


def test_a_file_of_characters_is_a_matrix(tmp_path: Path) -> None:
    """As the availability of the phones is written: a line for each round, a character for each client."""
    file = tmp_path / "there.txt"
    file.write_text("# half-hours\n01?\n000\n\n11?\n")
    trace = Trace.from_csv(file, round="30min")
    assert rounds_of(trace) == rounds_of(Trace.from_matrix(["01?", "000", "11?"]))
    assert (trace.num_clients, trace.num_rounds, trace.round_seconds) == (3, 3, 1800.0)
    with pytest.raises(InvalidInput, match="num_clients = 4"):
        Trace.from_csv(file, 4)
    file.write_text("01\n0\n")
    with pytest.raises(InvalidInput, match="one character per client"):
        Trace.from_csv(file)
    file.write_text("01\n0x\n")
    with pytest.raises(InvalidInput, match="must be 1"):
        Trace.from_csv(file)


def test_a_file_with_rounds_and_names(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("round,device\n0,tablet\n2,phone-10\n2,phone-2\n", encoding="utf-8")
    trace = Trace.from_csv(file)
    assert rounds_of(trace) == [["tablet"], [], ["phone-2", "phone-10"]]
    assert rounds_of(Trace.from_csv(file, 4, num_rounds=4))[3] == []


def test_numbers_of_another_unit(tmp_path: Path) -> None:
    """Milliseconds were read as seconds, without a word."""
    file = tmp_path / "log.csv"
    file.write_text("timestamp,device\n1763330400000,a\n1763334000000,b\n", encoding="utf-8")
    assert rounds_of(Trace.from_csv(file, round="1h", unit="ms")) == [["a"], ["b"]]
    with pytest.raises(InvalidInput, match="milliseconds"):
        Trace.from_intervals(["a"], [1763330400000], [1763334000000], "1h")


def test_names_and_times_are_kept_by_csv(tmp_path: Path) -> None:
    names = ["a", "b # c", ' "d"\n']
    trace = Trace.from_intervals([0, 1], [1800.5, 0.25], [5000, 6000], 1800.125, names=[0, 1, 2])  # type: ignore[list-item]
    trace = replace(trace, names=names)
    trace.to_csv(tmp_path / "log.csv")
    again = Trace.from_csv(tmp_path / "log.csv")
    assert again.names == trace.names == tuple(names)
    assert (again.round_seconds, again.start_seconds) == (trace.round_seconds, trace.start_seconds)
    np.testing.assert_array_equal(again.matrix(), trace.matrix())
    assert Trace.from_csv(tmp_path / "log.csv", 4).name(3) == "3"


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_device_that_is_missing_is_none(missing: object) -> None:
    with pytest.raises(InvalidInput, match="device 2 = None: a device is missing"):
        Trace.from_intervals(["a", missing], [0, 0], [9, 9], 5)


def test_a_device_of_which_nothing_is_known_is_named() -> None:
    trace = Trace.from_matrix(["1?", "0?"], names=["a", "b"])
    for looked in (frequencies, summarise, lambda log: Bootstrap(log, [1], 2).probabilities()):
        with pytest.raises(InvalidInput, match="trace = 'b': nothing is known of this device: take it out of the log"):
            looked(trace)


def test_odd_frames() -> None:
    pandas = pytest.importorskip("pandas")
    named = pandas.DataFrame({"round": [0, 2], "device": ["b", "a"]})
    assert rounds_of(Trace.from_pandas(named)) == [["b"], [], ["a"]]
    numbered = pandas.DataFrame({"round": [0, 1], "client": [1, 0]})
    assert rounds_of(Trace.from_pandas(numbered, names=["1", "0"])) == [["1"], ["0"]]
    matrix = pandas.DataFrame({"a": [1, 0], "b": [0, 1]})
    assert rounds_of(Trace.from_matrix(matrix)) == [["a"], ["b"]]
    assert Trace.from_matrix(pandas.DataFrame([[1, 0]])).names is None
    frame = pandas.DataFrame({"device": ["a", pandas.NA], "time": [1, 2]})
    for bad, message in [
        ([[0, 1]], "must be a pandas data frame"),
        (frame, "a device is missing"),
        (pandas.DataFrame({"device": ["a"], "time": [pandas.NA]}), "a time is missing"),
        (pandas.DataFrame({"round": [0.5], "device": ["a"]}), "must be the number of a round"),
        (named[:0], "no rows"),
    ]:
        with pytest.raises(InvalidInput, match=message) as caught:
            Trace.from_pandas(bad, None if "round" in bad else "1h")
        assert "\n" not in str(caught.value)
    assert Trace.from_pandas(frame[:1], pandas.Timedelta("30min")).round_seconds == 1800


@pytest.mark.parametrize(
    "text",
    [
        "device,date,time\na,2026-11-16,22:05\nb,2026-11-16,23:05\na,2026-11-17,1:05:30\n",
        "Hour;Date;device\n22;20261116;a\n23;20261116;b\n1;20261117;a\n",
        "device,date,time,hour\na,2026-11-16,22:05Z,22\nb,2026-11-16,23:05Z,23\na,2026-11-17,01:05Z,1\n",
    ],
)
def test_a_date_and_its_clock_are_one_time(tmp_path: Path, text: str) -> None:
    """The clock was passed over: every visit was at midnight."""
    (tmp_path / "log.csv").write_text(text, encoding="utf-8")
    trace = Trace.from_csv(tmp_path / "log.csv", round="1h")
    assert rounds_of(trace) == [["a"], ["b"], [], ["a"]]
    assert trace.start_seconds == 22 * 3600


def test_names_that_begin_with_the_sign_of_a_comment(tmp_path: Path) -> None:
    """They were passed over; comments stand before the header, or have other columns than it has."""
    file = tmp_path / "log.csv"
    file.write_text("# a log\ndevice,time\n#1,0\n# so much for that\nb,3600\n#1,7200\n", encoding="utf-8")
    assert rounds_of(Trace.from_csv(file, round="1h")) == [["#1"], ["b"], ["#1"]]


def test_rows_of_those_who_are_there_are_a_log(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("device,time,online,state\na,0,1,busy\nb,3600,yes,\n", encoding="utf-8")
    assert rounds_of(Trace.from_csv(file, round="1h")) == [["a"], ["b"]]


def test_numbers_that_look_like_dates_may_be_seconds() -> None:
    for numbers in ([20261116, 20261117], [46342.92, 46345.5]):
        with pytest.raises(InvalidInput, match="look like"):
            Trace.from_intervals(["a", "b"], numbers, numbers, "1s", least=0.0)
        assert Trace.from_intervals(["a", "b"], numbers, numbers, "1s", least=0.0, unit="s").num_rounds > 1
    assert Trace.from_intervals(["a", "b"], [20000.5, 90000], [20001, 90001], "1h").num_rounds == 21
    assert Trace.from_intervals(["a", "b"], [20261116, 20261199], [20261117, 20261200], "1h").num_rounds == 1


@pytest.mark.parametrize(
    "text",
    ["round;client\n0;1\n2;0\n", "client\tround\n1\t0\n0\t2\n", "0\t1\n2\t0\n", "round,client,loss\n0,1,.5\n2,0,.4\n"],
)
def test_pairs_of_numbers_in_other_clothes(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.csv").write_text(text, encoding="utf-8")
    trace = Trace.from_csv(tmp_path / "log.csv")
    assert rounds_of(trace) == [["1"], [], ["0"]]
    assert trace.extent() == "3 rounds, 2 rows"


def test_a_log_says_what_was_read(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(LOG, encoding="utf-8")
    trace = Trace.from_csv(file, round="30min")
    assert trace.source == (3, "2026-11-18 23:40", "2026-11-19 00:10")
    assert trace.extent() == "2 rounds of 30min, from 2026-11-18 23:40 to 2026-11-19 00:10, 3 rows"
    stays = Trace.from_intervals(["a"], ["2026-11-18T04:30+02:00"], ["2026-11-18T09:00:30+02:00"], 5400)
    assert stays.extent() == "4 rounds of 1h30min, from 2026-11-18 02:30 UTC to 2026-11-18 07:00:30 UTC, 1 row"
    assert Trace.from_intervals(["a"], [0], [90000], 30).extent() == "3,000 rounds of 30s, from 0 s to 90,000 s, 1 row"
    assert Trace.from_matrix(["10", "01"]).extent() == "2 rounds"
    assert replace(trace, repeat=True).source is None


def test_frames_are_read_as_files_are() -> None:
    """Numbers in a column device are names: 355 and 9 made 356 clients."""
    pandas = pytest.importorskip("pandas")
    trace = Trace.from_pandas(pandas.DataFrame({"round": [0, 1], "device": [355, 9]}))
    assert (trace.num_clients, trace.names) == (2, ("9", "355"))
    days = pandas.to_datetime(["2026-11-16", "2026-11-16", "2026-11-17"])
    clocks = [
        moment.time() for moment in pandas.to_datetime(["2026-01-01 22:05", "2026-01-01 23:10", "2026-01-01 01:00"])
    ]
    for date in (days, days.date):
        frame = pandas.DataFrame({"device": ["a", "b", "a"], "date": date, "time": clocks})
        assert rounds_of(Trace.from_pandas(frame, "1h")) == [["a"], ["b"], [], ["a"]]
    frame["online"] = [True, True, False]
    with pytest.raises(InvalidInput, match="frame, row = 3: by its online"):
        Trace.from_pandas(frame, "1h")


@pytest.mark.parametrize(
    ("length", "rounds"), [("36h", 1), ("3d", 1), ("22h", 1), ("21h", 2), ("1d", 1), ("12h", 3), (30, 2641)]
)
def test_a_log_no_longer_than_a_round_is_one_round(length: object, rounds: int) -> None:
    """Rounds of 36 hours began at midnight: a log of 22 hours had two of them."""
    times = ["2026-11-16 22:00:10", "2026-11-17 20:00:00"]
    frame = Trace.from_intervals(["a", "b"], times, times, length, least=0.0)  # type: ignore[arg-type]
    assert frame.num_rounds == rounds
    assert frame.counts().tolist() == [1, 1]
    assert rounds == 1 or frame.start_seconds % float(frame.round_seconds or 0) == 0


@pytest.mark.parametrize("devices", [None, 5, "abc"])
def test_devices_that_are_no_list(devices: object) -> None:
    with pytest.raises(InvalidInput, match=r"^log, devices = .*: must be a list of names"):
        Trace.from_intervals(devices, [0, 1, 2], [3, 4, 5], 1)  # type: ignore[arg-type]
