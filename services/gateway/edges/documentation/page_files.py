"""The files of the page at /docs. It works without any other host.

The page shows text of models and of answers. So it may run its own script alone, and load nothing
else: Content-Security-Policy says so to browsers.
"""

from importlib.resources import files

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FIELDS = (
    f"content-security-policy: {_POLICY}\r\n"
    "x-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n"
)
_FILES = {
    "/docs": ("page.html", "text/html"),
    "/docs/page.css": ("page.css", "text/css"),
    "/docs/page.mjs": ("page.mjs", "text/javascript"),
    "/docs/request.mjs": ("request.mjs", "text/javascript"),
}


def page_files() -> dict[str, tuple[bytes, bytes]]:
    """Returns the header lines and the content of each file, by its path."""
    folder = files("services.gateway.edges.documentation")
    return {
        path: (
            f"content-type: {kind}; charset=utf-8\r\n{_FIELDS}".encode(),
            folder.joinpath(name).read_bytes(),
        )
        for path, (name, kind) in _FILES.items()
    }
