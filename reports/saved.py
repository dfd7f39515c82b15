"""A diagnosis put into its run's directory, in every form that is kept there."""

from __future__ import annotations

from dataclasses import replace

from fasttrain_doctor.diagnosis import Diagnosis
from fasttrain_doctor.reports import html, json
from fasttrain_doctor.reports.sentence import sentence
from fasttrain_doctor.reports.view import view
from fasttrain_doctor.run import RunWriter


def judged(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis with its verdict in a sentence."""
    return diagnosis if diagnosis.verdict else replace(diagnosis, verdict=sentence(diagnosis))


def save(writer: RunWriter, diagnosis: Diagnosis) -> Diagnosis:
    """Write ``diagnosis.json``, then ``report.html``, then how the run ended; return the diagnosis with its verdict.

    Raises:
        DoctorError: ``disk-full`` or ``output-unwritable``; what was written until then is whole.
    """
    diagnosis = judged(diagnosis)
    writer.diagnosis(json.dumps(diagnosis))
    writer.report(html.render(view(diagnosis, writer.run.samples(), writer.run.id)))
    writer.status(diagnosis.status)
    return diagnosis
