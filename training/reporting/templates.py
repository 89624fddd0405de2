"""Renders the Jinja2 templates that lie beside the code: names and values in, HTML or SVG out.

Every value is escaped, except markup that a template made; an undefined name is an error. Jinja2 is
imported when the first page is rendered.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, values: Mapping[str, object], package: str = "training") -> str:
    """Renders a template; other templates do not escape the text again.

    Args:
        template: path below the package, such as `reporting/report.html`.
        values: the names that the template uses.
        package: top-level package of the template and of those it includes.

    Raises:
        jinja2.UndefinedError: the template uses a name that has no value.
    """
    from markupsafe import Markup

    return Markup(_environment(package).get_template(template).render(values))  # noqa: S704


@cache
def _environment(package: str) -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = _percent
    environment.filters["thousands"] = "{:,}".format
    return environment


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
