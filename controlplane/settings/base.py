"""Settings of all environments. Each process setting is defined once, here or beside this file."""

from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from pythonjsonlogger.core import RESERVED_ATTRS

from controlplane.base import env, plotly_js
from controlplane.base.limits.addresses import networks
from controlplane.base.limits.rates import Rate
from controlplane.settings.home import default_home

BASE_DIR = Path(__file__).resolve().parent.parent.parent

# Addresses and directories of this control plane --------------------------------------------------

WEIR_HOME = Path(env.text("WEIR_HOME", "") or default_home(BASE_DIR)).resolve()
WEIR_URL = env.text("WEIR_URL", "http://127.0.0.1:8000").rstrip("/")  # As people reach it.
WEIR_GATEWAY_URL = env.text("WEIR_GATEWAY_URL", WEIR_URL).rstrip("/")  # As drivers reach it.
WEIR_GATEWAY_ALLOW_PLAIN_HTTP = env.flag("WEIR_GATEWAY_ALLOW_PLAIN_HTTP", False)
WEIR_GATEWAY_CA = env.text("WEIR_GATEWAY_CA", "")  # PEM; empty: what the drivers' system trusts.
WEIR_CHECKPOINT_ROOT = env.text("WEIR_CHECKPOINT_ROOT", str(WEIR_HOME / "checkpoints"))
WEIR_UPLOADS = Path(env.text("WEIR_UPLOADS", str(WEIR_HOME / "uploads")))
WEIR_DRIVERS = Path(env.text("WEIR_DRIVERS", str(WEIR_HOME / "drivers")))  # Job files and logs.
# Directories of pipelines that are submitted by path; modules are found by name.
WEIR_SCRIPT_ROOTS = [Path(root).resolve() for root in env.words("WEIR_SCRIPT_ROOTS")]
WEIR_SPARK_MASTER = env.text("WEIR_SPARK_MASTER", "local[*]")
# The page of that master, asked for the size of its cluster; empty: nothing is asked.
WEIR_SPARK_MASTER_UI = env.text("WEIR_SPARK_MASTER_UI", "").rstrip("/")
WEIR_SPARK_DEPLOY_MODE = env.text("WEIR_SPARK_DEPLOY_MODE", "client")
WEIR_SPARK_SUBMIT = env.text("WEIR_SPARK_SUBMIT", "")  # Empty: pyspark's, in this environment.
WEIR_SPARK_PYTHON = env.text("WEIR_SPARK_PYTHON", "")  # For drivers and executors; empty: this one.
WEIR_SPARK_CONF = dict(word.partition("=")[::2] for word in env.words("WEIR_SPARK_CONF"))

# The user that runs drivers, previews and comparisons, where the launcher is root; empty: its own.
WEIR_DRIVER_USER = env.text("WEIR_DRIVER_USER", "")
WEIR_DRIVER_GROUP = env.text("WEIR_DRIVER_GROUP", "")  # Empty: that user's primary group.
WEIR_DRIVER_ENVIRONMENT = env.words("WEIR_DRIVER_ENVIRONMENT")  # Further variables for user code.

WEIR_UPLOAD_BYTES_MAX = env.integer("WEIR_UPLOAD_BYTES_MAX", 10 << 20, least=1)
WEIR_BODY_BYTES_MAX = env.integer("WEIR_BODY_BYTES_MAX", 1 << 20, least=1)  # API, uploads aside.
# A driver's batch, packed and unpacked; drivers send at most 4 MiB, and single larger events.
WEIR_GATEWAY_BODY_BYTES_MAX = env.integer("WEIR_GATEWAY_BODY_BYTES_MAX", 8 << 20, least=1 << 20)

WEIR_DRIVER_TIMEOUT_MS = env.integer("WEIR_DRIVER_TIMEOUT_MS", 30_000, least=1_000)
WEIR_DRIVER_START_TIMEOUT_MS = env.integer("WEIR_DRIVER_START_TIMEOUT_MS", 180_000, least=1_000)
# A driver that has been silent for this long may be unreachable: its job is not ticked.
WEIR_DRIVER_SILENT_MS = env.integer("WEIR_DRIVER_SILENT_MS", 4_000, least=500)
WEIR_OPERATION_TIMEOUT_MS = env.integer("WEIR_OPERATION_TIMEOUT_MS", 300_000, least=1_000)
WEIR_PREVIEW_TIMEOUT_MS = env.integer("WEIR_PREVIEW_TIMEOUT_MS", 120_000, least=1_000)
WEIR_CANCEL_GRACE_MS = env.integer("WEIR_CANCEL_GRACE_MS", 20_000, least=1_000)
# The web process: threads for database work, each with a connection, and calls that may wait for a
# thread.
WEIR_DATABASE_THREADS = env.integer("WEIR_DATABASE_THREADS", 8, least=1)
# Drivers' batches that are unpacked and applied at the same time; fewer than threads, so that pages
# are answered however much drivers send.
WEIR_GATEWAY_BATCHES_MAX = env.integer("WEIR_GATEWAY_BATCHES_MAX", 4, least=1)
WEIR_DATABASE_WAITING_MAX = env.integer("WEIR_DATABASE_WAITING_MAX", 1_000, least=1)
# Requests that hash a password have threads of their own: hashing takes half a second of a core.
WEIR_PASSWORD_THREADS = env.integer("WEIR_PASSWORD_THREADS", 1, least=1)
WEIR_PASSWORD_WAITING_MAX = env.integer("WEIR_PASSWORD_WAITING_MAX", 16, least=1)
# Failed logins of an address, and for an account.
WEIR_THROTTLE_LOGIN_ADDRESS = env.parsed("WEIR_THROTTLE_LOGIN_ADDRESS", "20/min", Rate.parse)
WEIR_THROTTLE_LOGIN_ACCOUNT = env.parsed("WEIR_THROTTLE_LOGIN_ACCOUNT", "50/hour", Rate.parse)
# The proxies whose word on a client's address counts, and how many of them a request passes.
WEIR_TRUSTED_PROXIES = env.parsed(
    "WEIR_TRUSTED_PROXIES", "", lambda text: networks(word for word in text.split(",") if word)
)
WEIR_NUM_PROXIES = env.integer("WEIR_NUM_PROXIES", 1, least=1)
# Event streams and waiting polls of a web process: in all, of an address, of an account.
WEIR_STREAMS_MAX = env.integer("WEIR_STREAMS_MAX", 1_000, least=1)
WEIR_STREAMS_PER_ADDRESS_MAX = env.integer("WEIR_STREAMS_PER_ADDRESS_MAX", 300, least=1)
WEIR_STREAMS_PER_USER_MAX = env.integer("WEIR_STREAMS_PER_USER_MAX", 30, least=1)
WEIR_POLLS_MAX = env.integer("WEIR_POLLS_MAX", 4_000, least=1)
# One is a driver's; others are those of drivers that were cut off or replaced.
WEIR_POLLS_PER_JOB_MAX = env.integer("WEIR_POLLS_PER_JOB_MAX", 8, least=1)
WEIR_POLLS_PER_ADDRESS_MAX = env.integer("WEIR_POLLS_PER_ADDRESS_MAX", 2_000, least=1)
# Changes by API have to name the version that they are about, by If-Match.
WEIR_TAP = env.flag("WEIR_TAP", True)  # No: no records of running jobs are shown to any account.
WEIR_REQUIRE_IF_MATCH = env.flag("WEIR_REQUIRE_IF_MATCH", False)
WEIR_METRICS_PUBLIC = env.flag("WEIR_METRICS_PUBLIC", False)  # No: /metrics needs a viewer.
# A process whose loop or threads have not come round for so long ends itself; 0: it does not.
WEIR_STUCK_AFTER_S = env.integer("WEIR_STUCK_AFTER_S", 30)
WEIR_TICK_AGE_MAX_S = env.integer("WEIR_TICK_AGE_MAX_S", 15, least=2)  # Older: /readyz gives 503.
# The functions that make a job's snapshot for its event stream, and its part that counts as news.
WEIR_JOB_SNAPSHOT = "frontend.job.snapshot.snapshot"
WEIR_JOB_SNAPSHOT_CHANGES = "frontend.job.snapshot.changes"

# Keys of secrets, those of endpoints too: the first one writes, all read. Web, launcher and the
# worker of deliveries need them.
WEIR_ENCRYPTION_KEYS = env.keys("WEIR_ENCRYPTION_KEYS")

WEIR_RETAINED_CHECKPOINTS = env.integer("WEIR_RETAINED_CHECKPOINTS", 10, least=1)
WEIR_DETAILED_CHECKPOINTS = env.integer("WEIR_DETAILED_CHECKPOINTS", 200, least=1)

# Deliveries to endpoints: the time of an attempt, the bound of the first retry's wait, which
# doubles, and for how long a delivery and a failing endpoint are tried.
WEIR_DELIVERY_TIMEOUT_S = env.integer("WEIR_DELIVERY_TIMEOUT_S", 15, least=1)
WEIR_DELIVERY_RETRY_FIRST_MS = env.integer("WEIR_DELIVERY_RETRY_FIRST_MS", 5_000, least=10)
WEIR_DELIVERY_GIVE_UP_AFTER_S = env.integer("WEIR_DELIVERY_GIVE_UP_AFTER_S", 86_400, least=1)
WEIR_ENDPOINT_DISABLE_AFTER_S = env.integer("WEIR_ENDPOINT_DISABLE_AFTER_S", 259_200, least=1)
WEIR_ENDPOINTS_CA = env.text("WEIR_ENDPOINTS_CA", "")  # PEM, trusted beside the system's.

# E-mail: endpoints of that kind, and notices to admins; without a host there is none.
EMAIL_HOST = env.text("EMAIL_HOST", "")
EMAIL_PORT = env.integer("EMAIL_PORT", 587, least=1)
EMAIL_HOST_USER = env.text("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = env.text("EMAIL_HOST_PASSWORD", "")
_email_security = env.choice("EMAIL_SECURITY", "starttls", ("starttls", "tls", "none"))
EMAIL_USE_TLS, EMAIL_USE_SSL = _email_security == "starttls", _email_security == "tls"
EMAIL_TIMEOUT = WEIR_DELIVERY_TIMEOUT_S
DEFAULT_FROM_EMAIL = env.text("EMAIL_FROM", "weir@localhost")
# Retention of rows (controlplane.retention): by age in days, 0 for no limit, and by number.
_DAYS_MAX = 36_500
WEIR_KEEP_CHECKPOINTS_DAYS = env.integer("WEIR_KEEP_CHECKPOINTS_DAYS", 30, most=_DAYS_MAX)
WEIR_KEEP_CHECKPOINTS_MAX = env.integer("WEIR_KEEP_CHECKPOINTS_MAX", 100_000, least=1_000)
WEIR_KEEP_SAVEPOINTS_DAYS = env.integer("WEIR_KEEP_SAVEPOINTS_DAYS", 90, most=_DAYS_MAX)
WEIR_KEEP_OPERATIONS_DAYS = env.integer("WEIR_KEEP_OPERATIONS_DAYS", 90, most=_DAYS_MAX)
WEIR_KEEP_OPERATIONS_MAX = env.integer("WEIR_KEEP_OPERATIONS_MAX", 10_000, least=100)
WEIR_KEEP_ATTEMPTS_DAYS = env.integer("WEIR_KEEP_ATTEMPTS_DAYS", 90, most=_DAYS_MAX)
WEIR_KEEP_ATTEMPTS_MAX = env.integer("WEIR_KEEP_ATTEMPTS_MAX", 2_000, least=100)
WEIR_KEEP_DRIVERS_DAYS = env.integer("WEIR_KEEP_DRIVERS_DAYS", 90, most=_DAYS_MAX)
WEIR_KEEP_DRIVERS_MAX = env.integer("WEIR_KEEP_DRIVERS_MAX", 500, least=10)
WEIR_KEEP_EXCEPTIONS_DAYS = env.integer("WEIR_KEEP_EXCEPTIONS_DAYS", 90, most=_DAYS_MAX)
WEIR_KEEP_EXCEPTIONS_MAX = env.integer("WEIR_KEEP_EXCEPTIONS_MAX", 2_000, least=100)
WEIR_KEEP_EVENTS_DAYS = env.integer("WEIR_KEEP_EVENTS_DAYS", 90, most=_DAYS_MAX)
WEIR_KEEP_EVENTS_MAX = env.integer("WEIR_KEEP_EVENTS_MAX", 100_000, least=1_000)
WEIR_KEEP_SAMPLES_DAYS = env.integer("WEIR_KEEP_SAMPLES_DAYS", 1, most=_DAYS_MAX)
WEIR_KEEP_DELIVERIES_DAYS = env.integer("WEIR_KEEP_DELIVERIES_DAYS", 30, most=_DAYS_MAX)
WEIR_KEEP_ALERTS_DAYS = env.integer("WEIR_KEEP_ALERTS_DAYS", 90, most=_DAYS_MAX)
WEIR_KEEP_SILENCES_DAYS = env.integer("WEIR_KEEP_SILENCES_DAYS", 90, most=_DAYS_MAX)
WEIR_KEEP_JOBS_DAYS = env.integer("WEIR_KEEP_JOBS_DAYS", 365, most=_DAYS_MAX)
WEIR_KEEP_AUDIT_DAYS = env.integer("WEIR_KEEP_AUDIT_DAYS", 730, most=_DAYS_MAX)
WEIR_KEEP_ADMIN_LOG_DAYS = env.integer("WEIR_KEEP_ADMIN_LOG_DAYS", 365, most=_DAYS_MAX)
WEIR_KEEP_SESSIONS_DAYS = env.integer("WEIR_KEEP_SESSIONS_DAYS", 1, most=_DAYS_MAX)
WEIR_KEEP_TOKENS_DAYS = env.integer("WEIR_KEEP_TOKENS_DAYS", 90, most=_DAYS_MAX)
WEIR_KEEP_UPLOADS_DAYS = env.integer("WEIR_KEEP_UPLOADS_DAYS", 30, most=_DAYS_MAX)
# A driver's log on disk; its oldest part goes. 0: no limit.
WEIR_DRIVER_LOG_BYTES_MAX = env.integer("WEIR_DRIVER_LOG_BYTES_MAX", 256 << 20)

# A driver to which no control plane has answered for so long ends itself; 0: it never does.
WEIR_DRIVER_ALONE_MAX_S = env.integer("WEIR_DRIVER_ALONE_MAX_S", 0)

# Django -------------------------------------------------------------------------------------------

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "rest_framework",
    "controlplane",
    "controlplane.accounts",
    "controlplane.audit",
    "controlplane.secrets",
    "controlplane.deliveries",
    "controlplane.retention",
    "jobs",
    "checkpoints",
    "controlplane.alerts",
    "frontend",
]

MIDDLEWARE = [
    "controlplane.base.requests.RequestMiddleware",
    "django.middleware.gzip.GZipMiddleware",  # Pages have a token each: it pads at random, too.
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "controlplane.accounts.refusals.RefusalMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "controlplane.base.requests.ContentSecurityPolicyMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "job-list"
LOGOUT_REDIRECT_URL = "login"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
APPEND_SLASH = True

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

# The few threads of the web process, and Celery's processes, keep their connections. A long wait
# for a lock ends with an error, after which the caller retries, and an idle open transaction is
# ended, because a job's row lock holds up all other work on that job. Under the isolation level
# each statement sees what was committed before it, as jobs.job_events needs it.
DATABASES: dict[str, dj_database_url.DBConfig] = {
    "default": env.database(
        "DATABASE_URL",
        "postgres://weir@127.0.0.1:5432/weir",
        {
            "connect_timeout": 5,
            "application_name": "weir",
            "options": "-c lock_timeout=15s -c idle_in_transaction_session_timeout=120s"
            " -c default_transaction_isolation=read\\ committed",
            # Detects a server that vanished with its machine within half a minute: while its
            # answer is awaited, and, with a query that never arrived, by what is not acknowledged.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        },
    )
}

# The launcher's own role, which ``weir_prepare`` creates; empty: it shares that of the others.
WEIR_LAUNCHER_ROLE = env.text("WEIR_LAUNCHER_ROLE", "")
WEIR_LAUNCHER_PASSWORD = env.text("WEIR_LAUNCHER_PASSWORD", "")
if WEIR_LAUNCHER_ROLE and not WEIR_LAUNCHER_PASSWORD:
    raise ImproperlyConfigured("WEIR_LAUNCHER_ROLE is set without WEIR_LAUNCHER_PASSWORD")

REDIS_URL = env.redis("REDIS_URL", "redis://127.0.0.1:6379/0")
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        # Requests wait for it, on the few threads of the web process.
        "OPTIONS": {"socket_timeout": 1.0, "socket_connect_timeout": 1.0},
    }
}

USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = False
STATIC_URL = "/static/"
STATIC_ROOT = WEIR_HOME / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "controlplane.base.static_storage.CompressedStaticFilesStorage"},
}
WEIR_PLOTLY = plotly_js.bundle(BASE_DIR)
STATICFILES_DIRS = [("plotly", str(WEIR_PLOTLY.parent))]
DATA_UPLOAD_MAX_MEMORY_SIZE = WEIR_BODY_BYTES_MAX
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
SESSION_ENGINE = "controlplane.accounts.sessions"
SESSION_COOKIE_AGE = env.integer("WEIR_SESSION_DAYS", 14, least=1, most=365) * 86_400
WEIR_SESSION_IDLE_MINUTES = env.integer("WEIR_SESSION_IDLE_MINUTES", 1_440, least=1)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"

# REST ---------------------------------------------------------------------------------------------

_PERMISSIONS = [
    "controlplane.accounts.permissions.RolePermission",
    "controlplane.base.rest.known_parameters.KnownParameters",
]
REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.accounts.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": _PERMISSIONS,
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["controlplane.base.rest.parsers.JSONParser"],
    "DEFAULT_FILTER_BACKENDS": [
        "controlplane.base.rest.filters.FilterBackend",
        "controlplane.base.rest.pagination.Ordering",
    ],
    "DEFAULT_PAGINATION_CLASS": "controlplane.base.rest.pagination.CursorPagination",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    # Anonymous requests are throttled where they are refused: in controlplane.base.problems.
    "DEFAULT_THROTTLE_CLASSES": ["controlplane.base.limits.throttling.UserThrottle"],
    "DEFAULT_THROTTLE_RATES": {
        "anon": env.text("WEIR_THROTTLE_ANONYMOUS", "60/min"),
        "user": env.text("WEIR_THROTTLE_USER", "1200/min"),
    },
    "NUM_PROXIES": 0,  # REMOTE_ADDR is the client's own: controlplane.base.limits.addresses.
    "EXCEPTION_HANDLER": "controlplane.base.problems.exception_handler",
    "DEFAULT_METADATA_CLASS": None,  # No OPTIONS: the OpenAPI document takes its place.
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Weir",
    "DESCRIPTION": (
        "Jobs, their checkpoints, and the operations on them.\n\n"
        "Reading needs the role viewer, changes the role operator, accounts and audit the role "
        "admin. A request that takes time answers 202 with an operation, which always reaches an "
        "end. Errors are problem documents (RFC 9457) with a stable `code`."
    ),
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": _PERMISSIONS,
    "SCHEMA_COERCE_PATH_PK": False,
    "ENUM_NAME_OVERRIDES": {
        "Cause": "controlplane.schema.CAUSES",
        "CheckpointKind": "controlplane.schema.CHECKPOINT_KINDS",
        "CheckpointStatus": "controlplane.schema.CHECKPOINT_STATUSES",
        "CheckpointingMode": "controlplane.schema.CHECKPOINTING_MODES",
        "AlertState": "controlplane.alerts.models.ALERT_STATES",
        "AlignmentOutcome": "checkpoints.models.AlignmentOutcome",
        "DeliveryOutcome": "controlplane.deliveries.models.OUTCOMES",
        "DeliveryStatus": "controlplane.deliveries.models.DELIVERY_STATUSES",
        "DesiredState": "jobs.models.DesiredState",
        "DriverStatus": "jobs.models.DriverStatus",
        "EndpointKind": "controlplane.deliveries.models.ENDPOINT_KINDS",
        "EndpointState": "controlplane.deliveries.api.serializers.ENDPOINT_STATES",
        "FailureReason": "controlplane.schema.FAILURE_REASONS",
        "InspectionKind": "controlplane.schema.INSPECTION_KINDS",
        "JobEventKind": "jobs.models.JobEventKind",
        "JobStatus": "controlplane.schema.JOB_STATUSES",
        "MemorySource": "controlplane.schema.MEMORY_SOURCES",
        "NoticeStatus": "controlplane.deliveries.models.NOTICE_STATUSES",
        "OperationKind": "jobs.models.OperationKind",
        "OperationStatus": "jobs.models.OperationStatus",
        "Phase": "controlplane.schema.PHASES",
        "PipelineKind": "jobs.models.PipelineKind",
        "PreviewKind": "controlplane.schema.PREVIEW_KINDS",
        "RestartStrategyKind": "controlplane.schema.RESTART_STRATEGY_KINDS",
        "Role": "controlplane.accounts.models.Role",
        "RuleKind": "controlplane.alerts.models.RULE_KINDS",
        "RuleState": "controlplane.alerts.api.serializers.RULE_STATES",
        "Switch": "controlplane.schema.SWITCHES",
        "SavepointKind": "controlplane.schema.SAVEPOINT_KINDS",
        "SettledDeliveryStatus": "controlplane.deliveries.api.serializers.SETTLED_STATUSES",
        "Severity": "controlplane.deliveries.models.NOTICE_SEVERITIES",
        "SubtaskStatus": "controlplane.schema.SUBTASK_STATUSES",
    },
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "controlplane.schema.complete",
    ],
    "SERVERS": [{"url": "/", "description": "This control plane."}],
    "TAGS": [
        {"name": "api", "description": "This API itself."},
        {"name": "jobs", "description": "Submitted pipelines and their runs."},
        {
            "name": "operations",
            "description": "Requests about jobs that take time, from begin to end.",
        },
        {"name": "checkpoints", "description": "Checkpoints and savepoints, and their details."},
        {
            "name": "savepoints",
            "description": "Checkpoints that are taken on request and kept until they are deleted.",
        },
        {"name": "uploads", "description": "Uploaded pipelines."},
        {"name": "secrets", "description": "Secrets of pipelines: write-only."},
        {
            "name": "alerting",
            "description": "Rules, alerts and silences; endpoints and deliveries to them.",
        },
        {"name": "accounts", "description": "Accounts, roles and tokens."},
        {"name": "audit", "description": "The audit log."},
    ],
    "SORT_OPERATIONS": False,
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "persistAuthorization": False},
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

# Celery -------------------------------------------------------------------------------------------

CELERY_BROKER_URL = REDIS_URL
CELERY_RESULT_BACKEND = None  # Tasks write their results as rows.
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True  # A killed worker's task runs again: each task may run twice.
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 60}  # Seconds; ticks repeat lost tasks.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_TASK_DEFAULT_QUEUE = "coordination"
CELERY_BEAT_SCHEDULER = "controlplane.base.schedules:WatchedScheduler"

# Logs ---------------------------------------------------------------------------------------------

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {
        "context": {"()": "controlplane.base.logs.ContextFilter"},
        "losses": {"()": "controlplane.base.server_losses.LossFilter"},
    },
    "formatters": {
        "json": {
            "()": "pythonjsonlogger.json.JsonFormatter",
            "fmt": "%(levelname)s %(name)s %(message)s",
            "rename_fields": {"levelname": "level", "name": "logger"},
            "timestamp": "time",  # ISO 8601, UTC.
            # The context's fields are members of their own; color_message repeats the message, and
            # Celery's data the message and the traceback.
            "reserved_attrs": [*RESERVED_ATTRS, "context", "color_message", "data"],
        },
        "plain": {
            "()": "controlplane.base.logs.PlainFormatter",
            "fmt": "%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        },
    },
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": env.text("WEIR_LOG_FORMAT", "json"),
            "filters": ["context", "losses"],
        }
    },
    "root": {"handlers": ["console"], "level": env.text("WEIR_LOG_LEVEL", "INFO")},
    "loggers": {
        # Replaces Uvicorn's handlers; controlplane.base.requests logs a line per request.
        "uvicorn": {"handlers": [], "propagate": True},
        "uvicorn.error": {"handlers": [], "propagate": True},
        "uvicorn.access": {"handlers": [], "propagate": True, "level": "WARNING"},
        "django.request": {"level": "ERROR"},  # Its warnings repeat that line.
        "celery.app.trace": {"level": "WARNING"},  # A line per task would be most of the log.
        "celery.worker.strategy": {"level": "WARNING"},
        "py4j": {"level": "WARNING"},  # It logs every connection that it closes.
        "celery.beat": {"level": "WARNING"},
    },
}
