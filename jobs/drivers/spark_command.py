"""The command line of spark-submit that starts a driver, per kind of master.

* ``local…`` and ``local-cluster[…]``: everything on the launcher's machine.
* ``spark://…``: the driver on the launcher's machine (Spark runs Python drivers of a standalone
  cluster no other way), the executors in the cluster.
* ``yarn``, ``k8s://…``: with WEIR_SPARK_DEPLOY_MODE=cluster the driver runs in the cluster as well.
  YARN ships job file and script beside the driver, in a staging directory that only its user may
  read. On Kubernetes the job file becomes a secret that is mounted into the driver's pod; the image
  has Weir, and the script, where the launcher has them.

Settings reach spark-submit by a properties file that only the driver's user can read, since all
users of a machine can read command lines. (Spark itself puts ``spark.driver.extraJavaOptions`` on
the command line of the driver's JVM.) spark-submit reads one such file only, so the file begins
with the ``spark-defaults.conf`` that it would have read.

``weir.spark_settings`` has what library mode sets as well.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from django.conf import settings

from jobs.drivers import driver_files
from jobs.drivers.processes import MARK
from jobs.models import Driver, Job
from jobs.submissions import runs_in_cluster
from weir.jvm_options import jvm_options
from weir.spark_master import MasterKind, SparkMaster
from weir.spark_settings import AUTHENTICATED, ENCRYPTED, LOOPBACK, SETTINGS

# Threads, not cores: each slot needs a thread of its own, and the script may want more slots than
# the machine has cores. Until its graph is known, this suffices for most; idle ones cost nothing.
LOCAL_THREADS_MIN = 32
SECRETS_DIRECTORY = "/var/run/weir"
# The variables of the launcher that user code gets. Secrets come in new names each year, so the
# list is of what is needed; WEIR_DRIVER_ENVIRONMENT adds to it.
ENVIRONMENT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR"),
        *("VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KRB5CCNAME"),
        *("KRB5_CONFIG", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    }
)
ENVIRONMENT_PREFIXES = (
    *(
        "LC_",
        "JAVA_",
        "JDK_",
        "PYTHON",
        "PYSPARK_",
        "SPARK_",
        "HADOOP_",
        "YARN_",
        "ARROW_",
        "MALLOC_",
    ),
)
_SECRET_NAME = re.compile(r"SECRET|PASSWORD|TOKEN|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SparkCommand:
    """The commands that start a driver: those of ``before`` in order, then ``command``.

    ``properties`` is the text of the file that the command names.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    properties: str = field(repr=False)
    before: tuple[tuple[str, ...], ...] = ()


def is_in_cluster(job: Job) -> bool:
    """Whether the job's drivers run in the cluster, not on the launcher's machine."""
    return runs_in_cluster(job.spark_master)


def is_shipped(job: Job) -> bool:
    """Whether Spark copies the script beside the driver."""
    return is_in_cluster(job) and job.spark_master == "yarn"


def spark_command(job: Job, driver: Driver, directory: Path) -> SparkCommand:
    """The command line that starts a driver whose job file lies in ``directory``."""
    job_file = directory / driver_files.JOB_FILE_NAME
    entry, target, flags = str(_entry_script()), str(job_file), list[str]()
    conf = _defaults(job, directory) | settings.WEIR_SPARK_CONF | job.spark_conf
    before: tuple[tuple[str, ...], ...] = ()
    if is_shipped(job):
        target = job_file.name
        script = driver_files.pipeline_path(job)
        flags = ["--files", ",".join([str(job_file), *([] if script is None else [str(script)])])]
        conf["spark.yarn.maxAppAttempts"] = "1"  # Only the control plane relaunches a driver.
    elif is_in_cluster(job):
        entry = f"local://{entry}"
        secret = f"weir-{job.pk.replace('_', '-')[:200]}-{driver.number}".lower()
        mount = f"{SECRETS_DIRECTORY}/{driver.number}"
        target = f"{mount}/{job_file.name}"
        conf[f"spark.kubernetes.driver.secrets.{secret}"] = mount
        before = (_secret_command(secret, job_file, conf.get("spark.kubernetes.namespace")),)
    mode = "cluster" if is_in_cluster(job) else "client"
    command = [
        _spark_submit(),
        "--master",
        _master(job),
        "--deploy-mode",
        mode,
        "--name",
        job.pk,
        "--properties-file",
        str(directory / driver_files.PROPERTIES_NAME),
        *flags,
    ]
    environment = _environment(job, driver)
    if _is_local(job):
        environment["SPARK_LOCAL_DIRS"] = str(driver_files.scratch_of(directory))
    properties = _spark_defaults(environment) + properties_text(conf)
    return SparkCommand((*command, entry, target), environment, properties, before)


def properties_text(conf: Mapping[str, str]) -> str:
    """Settings in the format of a Java properties file, which ``java.util.Properties`` reads."""
    return "".join(f"{_escaped(k)}={_escaped(v)}\n" for k, v in sorted(conf.items()))


_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def _escaped(text: str) -> str:
    """A key or a value; letters beyond ASCII as their UTF-16 units."""
    parts = []
    for character in text:
        if character in _ESCAPES:
            parts.append(_ESCAPES[character])
        elif character in " =:#!":
            parts.append(f"\\{character}")
        elif character.isascii() and character.isprintable():
            parts.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass")
            parts += [f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)]
    return "".join(parts)


def _spark_defaults(environment: Mapping[str, str]) -> str:
    """The text of ``spark-defaults.conf``, which a properties file replaces; our settings win."""
    if "SPARK_CONF_DIR" in environment:
        directory = Path(environment["SPARK_CONF_DIR"])
    else:
        home = environment.get("SPARK_HOME") or Path(_spark_submit()).resolve().parent.parent
        directory = Path(home) / "conf"
    try:
        return (directory / "spark-defaults.conf").read_text(encoding="utf-8").rstrip("\n") + "\n"
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _master(job: Job) -> str:
    """The job's master; a local one retries tasks, and its ``*`` becomes enough for all slots."""
    wanted = (job.options.get("parallelism") or 0, job.slot_count or 0)
    threads = max(os.cpu_count() or 1, LOCAL_THREADS_MIN, *wanted)
    return SparkMaster.parse(job.spark_master).with_retries(threads)


def _is_local(job: Job) -> bool:
    return SparkMaster.parse(job.spark_master).is_on_this_machine


def _defaults(job: Job, directory: Path) -> dict[str, str]:
    conf = dict(SETTINGS)
    if _is_local(job):
        log_configuration = _entry_script().with_name("log4j2.properties").as_uri()
        options = jvm_options()
        conf |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            # A killed JVM leaves its temporary files, which are deleted with the scratch directory.
            "spark.driver.extraJavaOptions": (
                f"-Dlog4j2.configurationFile={log_configuration} -XX:-UsePerfData {options} "
                f"-Djava.io.tmpdir={driver_files.scratch_of(directory)}"
            ),
            "spark.executor.extraJavaOptions": options,
            "spark.default.parallelism": str(os.cpu_count() or 1),  # Of cores, not of threads.
        }
    if SparkMaster.parse(job.spark_master).kind is MasterKind.LOCAL:
        conf |= AUTHENTICATED
    if is_in_cluster(job):  # A standalone cluster's nodes have theirs in spark-defaults.conf.
        conf |= ENCRYPTED
        python = settings.WEIR_SPARK_PYTHON or "python3"
        conf |= {"spark.pyspark.python": python, "spark.pyspark.driver.python": python}
    return conf


def environment_of(mark: str) -> dict[str, str]:
    """The part that user code gets of the launcher's environment: the variables of the allow-list.

    Args:
        mark: The text by which the embedded stack finds the processes.
    """
    named = ENVIRONMENT | set(settings.WEIR_DRIVER_ENVIRONMENT)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in named
        or (name.startswith(ENVIRONMENT_PREFIXES) and not _SECRET_NAME.search(name))
    }
    python = settings.WEIR_SPARK_PYTHON or sys.executable
    return environment | {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        MARK: mark,
    }


def _environment(job: Job, driver: Driver) -> dict[str, str]:
    environment = environment_of(f"{job.pk}/{driver.number}")
    if not settings.WEIR_SPARK_SUBMIT:
        environment["SPARK_HOME"] = str(_pyspark())
    if _is_local(job):
        environment.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return environment


def _secret_command(name: str, job_file: Path, namespace: str | None) -> tuple[str, ...]:
    in_namespace = () if namespace is None else (f"--namespace={namespace}",)
    from_file = f"--from-file={job_file.name}={job_file}"
    return ("kubectl", "create", "secret", "generic", name, from_file, *in_namespace)


def _spark_submit() -> str:
    return settings.WEIR_SPARK_SUBMIT or str(_pyspark() / "bin" / "spark-submit")


def _pyspark() -> Path:
    """The directory of the installed pyspark, located without an import."""
    return _origin("pyspark").parent


def _entry_script() -> Path:
    """The driver's entry script, located without importing ``weir.spark``, the runtime's."""
    return _origin("weir.spark").with_name("driver.py")


def _origin(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the launcher needs {package}, which is not installed on its machine")
    return Path(spec.origin)
