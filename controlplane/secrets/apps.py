from django.apps import AppConfig


class SecretsConfig(AppConfig):
    name = "controlplane.secrets"
    label = "secrets"
