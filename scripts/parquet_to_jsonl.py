#!/usr/bin/env python3
"""Parquet → JSON lines, which titan_train reads: parquet_to_jsonl.py IN.parquet OUT.jsonl [COLUMN]   (needs pyarrow)

Every row becomes a record of all its columns: texts, conversations and what else there is. With COLUMN, that column
alone is written, as the field "text"."""

import json, math, os, signal, sys


def plain(value, column):
    """What JSON can hold: no NaN and no bytes; dates and decimals as text."""
    if isinstance(value, dict):
        return {str(key): plain(item, column) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, column) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        raise SystemExit(f'parquet_to_jsonl.py: the column "{column}" holds bytes, not text; name another column.')
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def write_records(table, column, out):
    for batch in table.iter_batches(columns=None if column is None else [column], batch_size=1024):
        names = ["text"] if column else batch.schema.names
        columns = [batch.column(i).to_pylist() for i in range(batch.num_columns)]
        for row in zip(*columns):
            record = {name: plain(value, column or name) for name, value in zip(names, row)}
            if record.get("text", "") is None:
                record["text"] = ""
            out.write(json.dumps(record, ensure_ascii=False) + "\n")


def convert(source, target, column):
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(source)
    names = table.schema_arrow.names
    if column is not None and column not in names:
        raise SystemExit(f'parquet_to_jsonl.py: {source} has no column "{column}", only {", ".join(names)}.')
    if os.path.lexists(target):
        raise SystemExit(f"parquet_to_jsonl.py: {target} is there already; remove it or name another file.")
    part = f"{target}.part-{os.getpid()}"
    try:
        with open(part, "x", encoding="utf-8") as out:
            write_records(table, column, out)
        os.rename(part, target)
    finally:
        if os.path.lexists(part):
            os.remove(part)


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        convert(sys.argv[1], sys.argv[2], *(sys.argv[3:] or [None]))
    except ImportError:
        raise SystemExit("parquet_to_jsonl.py: pyarrow is not installed; get it with: pip install pyarrow") from None
    except (OSError, ValueError, NotImplementedError) as error:
        raise SystemExit(f"parquet_to_jsonl.py: {sys.argv[1]} cannot be converted: {error}") from None


main()
