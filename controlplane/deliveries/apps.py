from django.apps import AppConfig


class DeliveriesConfig(AppConfig):
    name = "controlplane.deliveries"
    label = "deliveries"
