"""The environment ATC runs in: what set_env.sh would set, our plugin, fewer compile processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .cann_install import CannInstall

PLUGIN_VARIABLE = "ASCEND_CUSTOM_OPP_PATH"
JOB_VARIABLES = ("TE_PARALLEL_COMPILER", "MAX_COMPILE_CORE_NUMBER")
_DRIVER = Path("/usr/local/Ascend/driver/lib64")


def child_environment(
    cann: CannInstall,
    plugin: Path | None = None,
    jobs: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment for `atc`.

    What the caller's environment already says about CANN stays, so a sourced set_env.sh wins.

    Args:
        plugin: vendor folder (with `framework/` and `op_proto/`), put before other custom ones.
        jobs: processes that compile kernels at one time.
        environ: the environment to start from; default: this process's.
    """
    env = dict(os.environ if environ is None else environ)
    root = cann.root
    for name, value in (
        ("ASCEND_HOME_PATH", root),
        ("ASCEND_TOOLKIT_HOME", root),
        ("ASCEND_AICPU_PATH", root),
        ("ASCEND_OPP_PATH", cann.opp),
        ("TOOLCHAIN_HOME", root / "toolkit"),
    ):
        env.setdefault(name, str(value))
    _append(env, "PATH", cann.atc.parent, root / "bin", root / "compiler/ccec_compiler/bin")
    _append(
        env,
        "PYTHONPATH",
        root / "python/site-packages",
        cann.opp / "built-in/op_impl/ai_core/tbe",
    )
    _append(env, "LD_LIBRARY_PATH", root / "lib64", root / "compiler/lib64")
    if not _DRIVER.is_dir():  # a host without a card links against stubs
        _append(env, "LD_LIBRARY_PATH", *sorted(root.glob("*-linux/devlib")), root / "devlib")
    if plugin is not None:
        others = [part for part in env.get(PLUGIN_VARIABLE, "").split(":") if part]
        kept = [part for part in others if part != str(plugin)]
        env[PLUGIN_VARIABLE] = ":".join([str(plugin), *kept])
    if jobs is not None:
        env.update({name: str(jobs) for name in JOB_VARIABLES})
    # Error lines go to our log; without this they go to ~/ascend/log alone.
    env.setdefault("ASCEND_SLOG_PRINT_TO_STDOUT", "1")
    return env


def _append(env: dict[str, str], name: str, *folders: Path) -> None:
    """Add the folders that exist and are not listed yet to the end of a path variable."""
    parts = [part for part in env.get(name, "").split(":") if part]
    parts += [str(folder) for folder in folders if folder.is_dir() and str(folder) not in parts]
    if parts:
        env[name] = ":".join(parts)
