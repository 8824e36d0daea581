#!/usr/bin/env python3
"""Parquet → JSON lines, which titan_train reads: parquet_to_jsonl.py IN.parquet OUT.jsonl [COLUMN]   (needs pyarrow)"""
import json, sys
import pyarrow.parquet

source, target, column = (sys.argv[1:] + ["text"])[:3]
table = pyarrow.parquet.ParquetFile(source)
with open(target, "x", encoding="utf-8") as out:  # a file that is there stays as it is
    for batch in table.iter_batches(columns=[column]):
        for value in batch.column(0).to_pylist():
            out.write(json.dumps({"text": value or ""}, ensure_ascii=False) + "\n")
