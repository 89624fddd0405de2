"""The folder of keys: made once, never replaced, private ones for their owner only."""

import hashlib
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from model_store.errors import BadNameError, KeyFileError, SigningUnavailableError
from model_store.host.install_advice import install_command
from model_store.signatures import key_folder
from model_store.signatures.key_folder import KeyFolder, KeyListing, trusted_keys


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "keys")


def rsa_pem() -> bytes:
    return (
        rsa.generate_private_key(65537, 2048)
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def test_a_new_key_has_two_halves_and_only_its_owner_reads_the_private_one(
    keys: KeyFolder,
) -> None:
    key = keys.new("ada")
    private = keys.folder / "private/ada.pem"
    assert key.file == keys.folder / "public/ada.pem"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(private.parent.stat().st_mode) == 0o700
    loaded = serialization.load_pem_private_key(private.read_bytes(), None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    assert loaded.curve.name == "secp256r1"
    assert loaded.public_key() == serialization.load_pem_public_key(key.file.read_bytes())
    assert [file.name for file in private.parent.iterdir()] == ["ada.pem"]


def test_the_fingerprint_is_what_sha256sum_prints(keys: KeyFolder) -> None:
    key = keys.new("ada")
    assert key.fingerprint == hashlib.sha256(key.file.read_bytes()).hexdigest()


def test_the_fingerprint_does_not_depend_on_how_the_file_was_written(
    keys: KeyFolder, tmp_path: Path
) -> None:
    key = keys.new("ada")
    other = tmp_path / "ada.pem"
    other.write_bytes(b"# of Ada\r\n" + key.file.read_bytes().replace(b"\n", b"\r\n"))
    assert keys.trust(other).fingerprint == key.fingerprint


def test_a_key_is_never_replaced(keys: KeyFolder) -> None:
    keys.new("ada")
    before = (keys.folder / "private/ada.pem").read_bytes()
    with pytest.raises(KeyFileError, match=r"private/ada\.pem exists; choose another"):
        keys.new("ada")
    assert (keys.folder / "private/ada.pem").read_bytes() == before


@pytest.mark.parametrize("name", ["../ada", "", "a/b", ".ada"])
def test_a_name_that_is_no_file_name_is_refused(keys: KeyFolder, name: str) -> None:
    with pytest.raises(BadNameError, match="key name"):
        keys.new(name)
    assert not keys.folder.exists()


def test_the_list_says_of_each_key_whether_it_signs_and_is_trusted(
    keys: KeyFolder, tmp_path: Path
) -> None:
    assert keys.keys() == []
    own, quiet = keys.new("ada"), keys.new("quiet")
    others = KeyFolder(tmp_path / "others").new("default")
    keys.trust(own.file)
    keys.trust(others.file, "grace")
    (keys.folder / "private/quiet.pem").unlink()
    assert keys.keys() == [
        KeyListing("ada", own.fingerprint, is_private=True, is_trusted=True),
        KeyListing("grace", others.fingerprint, is_private=False, is_trusted=True),
        KeyListing("quiet", quiet.fingerprint, is_private=False, is_trusted=False),
    ]


def test_trusting_twice_is_fine_and_another_key_of_that_name_is_not(
    keys: KeyFolder, tmp_path: Path
) -> None:
    key, other = keys.new("ada"), KeyFolder(tmp_path / "others").new("ada")
    assert keys.trust(key.file) == keys.trust(key.file)
    with pytest.raises(KeyFileError, match="another key is trusted as 'ada'"):
        keys.trust(other.file)
    assert [k.fingerprint for k in trusted_keys(keys.trusted_folder)] == [key.fingerprint]


def test_a_private_key_is_never_trusted_nor_repeated(keys: KeyFolder) -> None:
    keys.new("ada")
    private = keys.folder / "private/ada.pem"
    with pytest.raises(KeyFileError, match="holds a private key") as refused:
        keys.trust(private)
    assert private.read_text().splitlines()[1] not in str(refused.value)
    assert not keys.trusted_folder.exists()


def test_what_is_no_key_is_refused_by_name(keys: KeyFolder, tmp_path: Path) -> None:
    def refusal(data: bytes) -> str:
        file = tmp_path / "bad.pem"
        file.write_bytes(data)
        with pytest.raises(KeyFileError) as refused:
            keys.trust(file)
        return str(refused.value)

    assert "bad.pem is not a public key in PEM" in refusal(b"")
    assert "bad.pem: it has 100,000 bytes, and at most 16,384 are" in refusal(b"x" * 100_000)
    assert "not on one of the curves secp256r1, secp384r1, secp521r1" in refusal(rsa_pem())
    with pytest.raises(KeyFileError, match=r"cannot read the key .*none\.pem: No such file"):
        keys.trust(tmp_path / "none.pem")


def test_one_bad_file_among_the_trusted_is_named(keys: KeyFolder) -> None:
    keys.trust(keys.new("ada").file)
    (keys.trusted_folder / "zoe.pem").write_bytes(b"")
    with pytest.raises(KeyFileError, match=r"zoe\.pem is not a public key"):
        trusted_keys(keys.trusted_folder)


def test_nobody_can_know_too_many_keys(keys: KeyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_folder, "MAX_TRUSTED_KEYS", 1)
    keys.trust(keys.new("ada").file)
    keys.trust(keys.new("grace").file)
    with pytest.raises(KeyFileError, match="holds 2 keys; trust at most 1"):
        trusted_keys(keys.trusted_folder)


def test_the_only_key_signs_unless_another_is_named(keys: KeyFolder, tmp_path: Path) -> None:
    assert keys.signing_key() is None
    keys.new("ada")
    ada = keys.folder / "private/ada.pem"
    assert keys.signing_key() == keys.signing_key("ada") == ada
    assert KeyFolder(tmp_path / "none").signing_key(str(ada)) == ada
    keys.new("grace")
    with pytest.raises(KeyFileError, match="has the private keys ada, grace; say with --sign-with"):
        keys.signing_key()
    with pytest.raises(KeyFileError, match=r"no private key 'adda' .*; here are: ada, grace"):
        keys.signing_key("adda")


def test_the_default_folder_is_where_configuration_belongs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert KeyFolder().folder == tmp_path / ".config/flambeau/keys"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "x"))
    assert KeyFolder().folder == tmp_path / "x/flambeau/keys"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"a file")
    with pytest.raises(KeyFileError, match="cannot write the key"):
        KeyFolder(tmp_path / "keys").new("ada")


def test_without_the_libraries_they_are_named(
    keys: KeyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cryptography.hazmat.primitives", "cryptography.hazmat.primitives.asymmetric"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SigningUnavailableError, match=re.escape(install_command("signing"))):
        keys.new("ada")


def test_importing_the_folder_imports_no_cryptography() -> None:
    code = (
        "import sys, model_store.store, services.inference.trust;"
        "print([m for m in sys.modules if m.split('.')[0] in ('cryptography', 'model_signing')])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"
