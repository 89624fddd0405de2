"""Untrusted code bundles: no file outside their folder, no size beyond the limits."""

import gzip
import io
import stat
import tarfile
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.code_bundle import BundleError, pack
from services.errors import InvalidRequestError, PayloadTooLargeError
from services.trainer.code_bundle import (
    DEEPEST,
    LONGEST_NAME,
    MAX_SHARED_HEADERS,
    BundleLimits,
    unpack,
)

LIMITS = BundleLimits(max_bytes=100_000, max_unpacked_bytes=10_000, max_files=20)


def tar_of(*members: tuple[str, bytes] | tarfile.TarInfo, packed: bool = True) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        for member in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member[0])
            content = b"" if isinstance(member, tarfile.TarInfo) else member[1]
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(found.getvalue()) if packed else found.getvalue()


def zip_of(*members: tuple[str | zipfile.ZipInfo, bytes], stored: bool = False) -> bytes:
    found, how = io.BytesIO(), zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(found, "w", how) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return found.getvalue()


def of_kind(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


FILES = (("nets.py", b"x = 1\n"), ("package/deep/more.py", b""))


@pytest.mark.parametrize(
    "data",
    [tar_of(*FILES), tar_of(*FILES, packed=False), zip_of(*FILES)],
    ids=["tgz", "tar", "zip"],
)
def test_files_come_out_as_they_went_in(data: bytes, tmp_path: Path) -> None:
    unpack(data, tmp_path / "code", LIMITS)
    assert (tmp_path / "code/nets.py").read_bytes() == b"x = 1\n"
    assert (tmp_path / "code/package/deep/more.py").read_bytes() == b""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/etc/passwd", "leads out of it"),
        ("../x.py", "leads out of it"),
        ("a/../../x.py", "leads out of it"),
        ("a\\..\\x.py", "leads out of it"),
        ("C:/x.py", "leads out of it"),
        ("a\nb.py", "is not a name"),
        ("a" * 300, "is not a name"),
        ("/".join("a" * 30), "is not a name"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(name: str, why: str, tmp_path: Path) -> None:
    for data in (tar_of(("fine.py", b""), (name, b"x")), zip_of(("fine.py", b""), (name, b"x"))):
        with pytest.raises(InvalidRequestError, match=why):
            unpack(data, tmp_path / "code", LIMITS)
    assert list(tmp_path.iterdir()) == []


def test_a_name_has_as_many_characters_and_folders_as_its_limits(tmp_path: Path) -> None:
    longest = "/".join("a" * DEEPEST)
    longest += "b" * (LONGEST_NAME - len(longest))
    for form, data in (("tar", tar_of((longest, b"x"))), ("zip", zip_of((longest, b"x")))):
        unpack(data, tmp_path / form, LIMITS)
        assert (tmp_path / form / longest).read_bytes() == b"x"
    for name in (f"{longest}b", f"a/{longest[:-2]}"):
        for data in (tar_of((name, b"x")), zip_of((name, b"x"))):
            with pytest.raises(InvalidRequestError, match="is not a name"):
                unpack(data, tmp_path / "code", LIMITS)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
)
def test_only_plain_files_come_out_of_a_tar(kind: bytes, tmp_path: Path) -> None:
    data = tar_of(("fine.py", b""), of_kind("link.py", kind, "/etc/passwd"))
    with pytest.raises(InvalidRequestError, match=r"'link.py' is a link or a device"):
        unpack(data, tmp_path / "code", LIMITS)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(InvalidRequestError, match="is a link or a device"):
        unpack(zip_of((link, b"/etc/passwd")), tmp_path / "code", LIMITS)


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="occurs twice"):
        unpack(tar_of(("a.py", b"1"), ("./a.py", b"2")), tmp_path / "code", LIMITS)
    with pytest.raises(InvalidRequestError, match="lies within 'a', which is a file"):
        unpack(tar_of(("a", b"1"), ("a/b", b"2")), tmp_path / "code", LIMITS)


def test_every_size_has_a_limit(tmp_path: Path) -> None:
    zeros = b"\0" * 20_000
    for data, name in [
        (b"x" * (LIMITS.max_bytes + 1), "max_bundle_bytes"),
        (zip_of(("zeros", zeros)), "max_unpacked_bytes"),
        (tar_of(("zeros", zeros)), "max_unpacked_bytes"),
        (gzip.compress(b"\0" * 200_000), "max_unpacked_bytes"),
        (zip_of(*((f"{n}.py", b"") for n in range(21))), "max_bundle_files"),
        (tar_of(*((f"{n}.py", b"") for n in range(21))), "max_bundle_files"),
    ]:
        with pytest.raises(PayloadTooLargeError, match=name):
            unpack(data, tmp_path / "code", LIMITS)
    assert list(tmp_path.iterdir()) == []


def test_members_are_counted_before_objects_are_made_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [(f"{n}.py", b"") for n in range(900)]
    zipped, tarred = zip_of(*many), tar_of(*many)
    attributes = tar_of(of_attributes(50_000))
    limits = replace(LIMITS, max_bytes=10**7, max_unpacked_bytes=10**7)
    made = []

    class Counted(tarfile.TarInfo):
        def __init__(self, name: str = "") -> None:
            super().__init__(name)
            made.append(name)

    def entry(*_: object) -> None:
        raise AssertionError("an object was made of an entry")

    monkeypatch.setattr(zipfile, "ZipInfo", entry)
    monkeypatch.setattr(tarfile.TarFile, "tarinfo", Counted)
    for data in (zipped, tarred, attributes):
        with pytest.raises(PayloadTooLargeError, match="max_bundle_files"):
            unpack(data, tmp_path / "code", limits)
    assert 0 < len(made) <= LIMITS.max_files + 2
    assert list(tmp_path.iterdir()) == []


def of_attributes(count: int) -> tarfile.TarInfo:
    """A file of which a header says so much that it takes a reader long."""
    info = tarfile.TarInfo("a.py")
    info.pax_headers = {f"x{n}": "" for n in range(count)}
    return info


def test_entries_of_a_zip_with_long_attributes_are_refused(tmp_path: Path) -> None:
    members = []
    for n in range(4):
        info = zipfile.ZipInfo(f"{n}.py")
        info.extra = bytes(60_000)
        members.append((info, b""))
    with pytest.raises(PayloadTooLargeError, match="more is said of them than files need"):
        unpack(zip_of(*members), tmp_path / "code", replace(LIMITS, max_bytes=10**6))


def test_headers_for_all_files_of_a_tar_are_limited(tmp_path: Path) -> None:
    """Python gives a copy of them to each member: 630 KB took gigabytes."""

    def packed(count: int) -> bytes:
        headers = {f"key{number}": "value" for number in range(count)}
        file = io.BytesIO()
        with tarfile.open(
            fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers=headers
        ) as archive:
            archive.addfile(tarfile.TarInfo("file.py"))
        return file.getvalue()

    unpack(packed(MAX_SHARED_HEADERS), tmp_path / "few", LIMITS)
    with pytest.raises(InvalidRequestError, match="too many global headers"):
        unpack(packed(MAX_SHARED_HEADERS + 1), tmp_path / "many", LIMITS)


def test_a_zip_within_a_bundle_is_a_file(tmp_path: Path) -> None:
    stored = zip_of(*((f"{n}.py", b"") for n in range(80)))
    unpack(zip_of(("inner.zip", stored), stored=True), tmp_path / "code", LIMITS)
    assert (tmp_path / "code/inner.zip").read_bytes() == stored


def test_what_a_zip_says_of_its_sizes_is_not_believed(tmp_path: Path) -> None:
    data = zip_of(("zeros", b"\0" * 20_000))
    lying = data.replace((20_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    assert lying != data
    with pytest.raises((InvalidRequestError, PayloadTooLargeError)):
        unpack(lying, tmp_path / "code", LIMITS)
    assert list(tmp_path.iterdir()) == []


@given(st.data())
def test_no_damage_makes_it_fail_otherwise(data: st.DataObject) -> None:
    archive = bytearray(data.draw(st.sampled_from([zip_of(*FILES), tar_of(*FILES, packed=False)])))
    for _ in range(data.draw(st.integers(1, 5))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            unpack(bytes(archive), folder / "code", LIMITS)
        except InvalidRequestError:
            assert list(folder.iterdir()) == []
        else:
            assert [path.name for path in folder.iterdir()] == ["code"]


def test_a_folder_becomes_a_bundle(tmp_path: Path) -> None:
    code = tmp_path / "project"
    for name in ("nets.py", "package/more.py", ".git/config", "__pycache__/nets.pyc", ".env"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    assert pack(code) == pack(code)
    unpack(pack(code), tmp_path / "code", LIMITS)
    found = {str(x.relative_to(tmp_path / "code")) for x in (tmp_path / "code").rglob("*.*")}
    assert found == {"nets.py", "package/more.py"}


def test_a_folder_that_makes_no_bundle_says_why(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="there is no folder"):
        pack(tmp_path / "missing")
    with pytest.raises(BundleError, match="has no file to send"):
        pack(tmp_path)
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="is a link"):
        pack(tmp_path)
