"""Addresses of endpoints and deliveries below ``/api/v1/``."""

from django.urls import path

from controlplane.deliveries.api import views

urlpatterns = [
    path("endpoints", views.EndpointsView.as_view(), name="endpoints"),
    path("endpoints/<uuid:id>", views.EndpointView.as_view(), name="endpoint"),
    path("endpoints/<uuid:id>/secret", views.EndpointSecretView.as_view(), name="endpoint-secret"),
    path("endpoints/<uuid:id>/test", views.EndpointTestView.as_view(), name="endpoint-test"),
    path(
        "endpoints/<uuid:id>/redeliver",
        views.EndpointRedeliverView.as_view(),
        name="endpoint-redeliver",
    ),
    path("deliveries", views.DeliveriesView.as_view(), name="deliveries"),
    path("deliveries/<uuid:id>", views.DeliveryView.as_view(), name="delivery"),
    path(
        "deliveries/<uuid:id>/redeliver",
        views.DeliveryRedeliverView.as_view(),
        name="delivery-redeliver",
    ),
]
