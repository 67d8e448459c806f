"""The base of API views of one object."""

from rest_framework.generics import GenericAPIView


class OneView(GenericAPIView):
    """A view of one object, without pages."""

    pagination_class = None
    filter_backends = []
