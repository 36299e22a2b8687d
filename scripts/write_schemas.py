#!/usr/bin/env python3
"""Writes the JSON schemas under docs/schemas/ anew, from the types that the files hold."""

from __future__ import annotations

import json
import pathlib

from tf_interop.benchmark.file import benchmark_schema
from tf_interop.plan.file import plan_schema
from tf_interop.plan.problem_file import problem_schema
from tf_interop.profile.file import profile_schema
from tf_interop.profile.worklist_file import configurations_schema
from tf_interop.runtime.run_record import run_schema

SCHEMAS = {
    "benchmark.schema.json": benchmark_schema,
    "configurations.schema.json": configurations_schema,
    "plan.schema.json": plan_schema,
    "planning_problem.schema.json": problem_schema,
    "profile.schema.json": profile_schema,
    "run.schema.json": run_schema,
}


def main() -> None:
    """Writes each schema."""
    folder = pathlib.Path(__file__).resolve().parents[1] / "docs" / "schemas"
    for name, make_schema in SCHEMAS.items():
        (folder / name).write_text(json.dumps(make_schema(), indent=2) + "\n")


if __name__ == "__main__":
    main()
