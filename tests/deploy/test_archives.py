"""Archives are extracted with every Python that the project supports."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from deploy.archives import extract


class Archive(tarfile.TarFile):
    """The class of Python 3.11.2, which has no filters."""

    def extractall(self, path: Any = ".", members: Any = None, **options: Any) -> None:
        if options:
            raise TypeError("TarFile.extractall() got an unexpected keyword argument 'filter'")
        filters: dict[str, Any] = {"filter": "data"} if FILTERS else {}
        super().extractall(path, members, **filters)


FILTERS = hasattr(tarfile, "data_filter")


@pytest.mark.parametrize("kind", [tarfile.TarFile, Archive])
def test_an_archive_is_extracted_with_and_without_filters(
    kind: type[tarfile.TarFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as made:
        member = tarfile.TarInfo("folder/file")
        member.size = 3
        made.addfile(member, io.BytesIO(b"abc"))
    if kind is Archive and FILTERS:
        monkeypatch.setattr("deploy.archives.HAS_FILTERS", False)
    with kind(fileobj=io.BytesIO(content.getvalue())) as archive:
        extract(archive, tmp_path)
    assert (tmp_path / "folder/file").read_bytes() == b"abc"
