from django.apps import AppConfig


class RetentionConfig(AppConfig):
    name = "controlplane.retention"
    label = "retention"
