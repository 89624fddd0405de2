"""The command line: one function per command; its dependencies are imported when it runs."""

from typing import Annotated

import typer

from flambeau import __version__
from flambeau.commands.access import access_app
from flambeau.commands.alerts import alerts
from flambeau.commands.dead_letters import queue_app
from flambeau.commands.demo import demo
from flambeau.commands.import_model import import_
from flambeau.commands.infer import infer
from flambeau.commands.jobs import jobs_app
from flambeau.commands.keys import keys_app
from flambeau.commands.migration.capture import capture
from flambeau.commands.migration.export_model import export
from flambeau.commands.migration.replay import replay
from flambeau.commands.models import models_app
from flambeau.commands.options.set_command import RecipeCommand, SettingsCommand
from flambeau.commands.options.tls import CaFile, CertificateFile, KeyFile, UseTls, keep_tls
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.report import report
from flambeau.commands.rollouts.rollout import rollout_app
from flambeau.commands.rollouts.shadow import shadow_app
from flambeau.commands.rollouts.split import split_app
from flambeau.commands.samples import samples_app
from flambeau.commands.serve import serve
from flambeau.commands.servers import PASSED_ON, gateway, inference, registry, trainer
from flambeau.commands.sweep import sweep
from flambeau.commands.train_jobs import train_app
from flambeau.commands.transfer import pull, push
from flambeau.commands.up import up
from flambeau.commands.up_split import up_split
from flambeau.commands.verify import verify

app = Verbs(
    name="flambeau",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train, export, verify, publish and serve PyTorch models.",
)
app.command(cls=RecipeCommand)(sweep)
for verb in (report, verify, push, pull, serve, infer, alerts, up, up_split, demo, replay, capture):
    app.command(cls=SettingsCommand if verb in (serve, up, up_split) else None)(verb)
app.command("import")(import_)
for process in (gateway, inference, registry, trainer):
    app.command(context_settings=PASSED_ON)(process)
models_app.command()(export)
app.add_typer(train_app, name="train")
app.add_typer(models_app, name="models")
app.add_typer(rollout_app, name="rollout")
app.add_typer(shadow_app, name="shadow")
app.add_typer(split_app, name="split")
app.add_typer(queue_app, name="queue")
app.add_typer(jobs_app, name="jobs")
app.add_typer(keys_app, name="keys")
app.add_typer(access_app, name="access")
app.add_typer(samples_app, name="samples")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flambeau {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    use_tls: UseTls = False,
    ca_file: CaFile = None,
    certificate_file: CertificateFile = None,
    key_file: KeyFile = None,
) -> None:
    keep_tls(use_tls, ca_file, certificate_file, key_file)


def main() -> None:
    """Runs the command line."""
    app()
