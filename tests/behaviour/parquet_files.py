"""Writes Parquet files with pyarrow, and what pyarrow reads of them as JSON lines, in a process of its own: pyarrow
brings large libraries along. `parquet_files.py FOLDER ROWS` makes FOLDER/NAME.parquet and FOLDER/NAME.jsonl for each of
twelve kinds of file, the longest with ROWS rows."""

from __future__ import annotations

import json
import pathlib
import random
import sys

WORDS = "once upon a time there was a fox, a bear and a hat \n\"river\" \\ é 漢字 🙂 \u2028 end".split(" ")


def texts(count: int, seed: int = 1, nulls: bool = False) -> list[str | None]:
    chance = random.Random(seed)
    made = [" ".join(chance.choices(WORDS, k=chance.randrange(0, 60))) for _ in range(count)]
    return [None if nulls and chance.random() < 0.2 else text for text in made]


def files(longest: int) -> dict[str, tuple]:
    """By name: the table, and options of write_table."""
    import pyarrow

    def table(column, **others):
        return pyarrow.table({"id": pyarrow.array(range(len(column))), "text": column, **others})

    some = texts(3000)
    repeated = [some[i % 17] for i in range(5000)]
    meta = [{"lang": "en", "parts": [{"at": i, "note": None if i % 3 else f"n{i}"}] * (i % 4)} for i in range(3000)]
    made = {
        "one_row": (table(["x"]), {}),
        "nulls": (table(texts(3000, nulls=True)), {"row_group_size": 700}),
        "dictionary": (table(pyarrow.array(repeated).dictionary_encode()), {"row_group_size": 999}),
        "dictionary_pages": (table(repeated), {"use_dictionary": True, "data_page_size": 2000}),
        "large_strings": (table(pyarrow.array(some, pyarrow.large_string())), {"data_page_version": "2.0"}),
        "nested": (table(some, meta=meta), {"row_group_size": 1100, "compression": "gzip"}),
        "empty_groups": (None, {}),  # made below: write_table makes none
        "long": (table(["x" * 3_000_000, "", "y" * 5_000_000]), {"row_group_size": 2, "compression": "lz4"}),
        "delta": (table(some), {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}),
        "brotli": (table(some), {"compression": "brotli", "write_page_checksum": True}),
        "plain": (table(pyarrow.array(some, pyarrow.string_view())), {"compression": "none", "row_group_size": 100}),
        "many_rows": (table([f"row {i}" for i in range(longest)]), {"compression": "snappy", "row_group_size": 250_000}),
    }
    assert len(made) == 12
    return made


def write(folder: pathlib.Path, longest: int) -> None:
    import pyarrow
    import pyarrow.parquet

    for name, (table, options) in files(longest).items():
        path = folder / f"{name}.parquet"
        if table is None:
            schema = pyarrow.schema({"id": pyarrow.int64(), "text": pyarrow.string()})
            with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
                for count in (0, 40, 0, 0, 60, 0):
                    columns = {"id": list(range(count)), "text": texts(count)}
                    writer.write_table(pyarrow.table(columns, schema))
        else:
            pyarrow.parquet.write_table(table, path, **{"compression": "zstd"} | options)
        read = pyarrow.parquet.read_table(path, columns=["text"], use_threads=False)["text"]
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for chunk in read.chunks:
                for text in chunk.to_pylist():
                    if text is not None:
                        out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
