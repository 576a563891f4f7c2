"""The committed inputs of the fuzz targets: one archive for each target, `fuzz/corpus/TARGET.tar.xz`.

python3 tests/fuzz/corpus.py list quantity                # sizes and names of the inputs
python3 tests/fuzz/corpus.py unpack target/inputs         # all of them as files, in target/inputs/TARGET/
python3 tests/fuzz/corpus.py add quantity FILE...         # add inputs, or replace those of the same name
python3 tests/fuzz/corpus.py remove quantity NAME...      # remove inputs

It needs the standard library only, because `cargo test` runs it too (rust/lab/fuzz/tests/corpus.rs).
"""

from __future__ import annotations

import argparse
import io
import lzma
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"
SUFFIX = ".tar.xz"


class CorpusError(Exception):
    """An archive cannot be read, or a change of it is not possible."""


def archive(target: str, corpus: Path = CORPUS) -> Path:
    """Return the path of the archive of a target."""
    return corpus / f"{target}{SUFFIX}"


def targets(corpus: Path = CORPUS) -> list[str]:
    """Return the names of the targets that have an archive."""
    return sorted(path.name.removesuffix(SUFFIX) for path in corpus.glob(f"*{SUFFIX}"))


def read(path: Path) -> dict[str, bytes]:
    """Return the inputs in an archive by name.

    Raises:
        CorpusError: the archive is missing, damaged, or not one that `write` makes.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(lzma.decompress(path.read_bytes()))) as opened:
            inputs = dict(_input(opened, member) for member in opened)
            count = len(opened.getmembers())
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror or error}") from error
    except (lzma.LZMAError, tarfile.TarError, ValueError) as error:
        hint = f"restore it: git checkout -- {path}"
        raise CorpusError(f"{path} is damaged: {error}; {hint}") from error
    if not inputs or len(inputs) != count:
        raise CorpusError(f"{path} has {count} members, {len(inputs)} of them with different names")
    return inputs


def _input(opened: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[str, bytes]:
    content = opened.extractfile(member) if member.isreg() else None
    if content is None or not _is_name(member.name):
        raise ValueError(f"member {member.name!r} is not a regular file in the archive's root")
    return member.name, content.read()


def _is_name(name: str) -> bool:
    return name not in {"", ".", ".."} and "/" not in name and "\0" not in name


def pack(inputs: Mapping[str, bytes]) -> bytes:
    """Return a tar archive that depends on the names and contents of the inputs only."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for name, content in sorted(inputs.items()):
            # The owner is 0 and the time of modification is 0 unless they are set.
            member = tarfile.TarInfo(name)
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def write(path: Path, inputs: Mapping[str, bytes]) -> None:
    """Replace an archive."""
    if not inputs:
        raise CorpusError(f"{path}: the archive of a target has at least one input")
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(lzma.compress(pack(inputs), preset=9 | lzma.PRESET_EXTREME))
    temporary.replace(path)


def unpack(path: Path, folder: Path) -> list[Path]:
    """Write the inputs of an archive to a folder, which has no other files then; return the files."""
    inputs = read(path)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name not in inputs:
            old.unlink()
    for name, content in inputs.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in inputs]


def read_files(files: Sequence[Path]) -> dict[str, bytes]:
    """Return the inputs in files by name."""
    try:
        return {path.name: path.read_bytes() for path in files}
    except OSError as error:
        raise CorpusError(f"{error.filename}: {error.strerror}") from error


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands above; return 1 if it fails."""
    parser = argparse.ArgumentParser(prog="corpus.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of the archives (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    for command, operand in (("list", ""), ("unpack", "folder"), ("add", "file"), ("remove", "name")):
        one = commands.add_parser(command)
        if command != "unpack":
            one.add_argument("target")
        if operand:
            kind = str if operand == "name" else Path
            one.add_argument(operand, type=kind, nargs=None if operand == "folder" else "+")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except CorpusError as error:
        print(f"corpus.py: {error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    """Run the selected command."""
    if options.command == "unpack":
        for target in targets(options.corpus):
            unpack(archive(target, options.corpus), options.folder / target)
        return
    path = archive(options.target, options.corpus)
    inputs = read(path) if options.command != "add" or path.exists() else {}
    match options.command:
        case "list":
            for name, content in inputs.items():
                print(f"{len(content):>8} {name}")
        case "add":
            write(path, inputs | read_files(options.file))
        case "remove":
            missing = [name for name in options.name if name not in inputs]
            if missing:
                raise CorpusError(f"{path} has no input {', '.join(missing)}")
            write(path, {name: content for name, content in inputs.items() if name not in options.name})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
