"""Records as tests make them, all numbers in one, put on disk as a run does: what probes found in files of their own."""

from dataclasses import replace
from pathlib import Path

from harness.core.experiment import EarlyProbe, Experiment, MemoryProbe, OverlapProbe, Probe, RuleTimesProbe
from harness.core.record_files import RecordFile
from harness.core.records import ProbeRecord, Record, text_hash


def write_records(folder: Path, experiment: Experiment, records: list[Record]) -> Path:
    file = RecordFile(folder, experiment)
    with file.open() as writer:
        for record in records:
            writer.append(with_probe_records(experiment, record))
    return file.path


def with_probe_records(experiment: Experiment, record: Record) -> Record:
    """The record as a run hands it over: what its fields hold of each probe, by the probe's id."""
    if record.status == "failed":
        return record
    facts = {"example": record.example, "repeat": record.repeat, "text": text_hash(record.tokens)}
    return replace(record, probes={one.id: ProbeRecord(**facts, **_held(record, one)) for one in experiment.probes})


def _held(record: Record, probe: Probe) -> dict:
    if isinstance(probe, OverlapProbe):
        return {"overlap": [one for one in record.overlap if one.drafter == probe.drafter.label]}
    if isinstance(probe, EarlyProbe):
        return {"early": [one for one in record.early if one.head == probe.label and one.layer in probe.layers]}
    if isinstance(probe, MemoryProbe):
        return {"peak_bytes": record.peak_bytes}
    assert isinstance(probe, RuleTimesProbe)
    return {"rule_times": record.rule_times}
