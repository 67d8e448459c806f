"""The API of accounts: the caller, tokens, users."""

import django_filters
from django.db.models import QuerySet
from django.urls import path
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import services
from controlplane.accounts.models import Role, Token, User
from controlplane.accounts.permissions import account, role_of
from controlplane.base.errors import existing
from controlplane.base.rest.filters import ChoicesFilter, TrueOrFalseFilter
from controlplane.base.rest.preconditions import ETAG, IF_MATCH, Versioned
from controlplane.base.rest.serializers import RequestSerializer
from controlplane.base.rest.views import OneView, list_schema

# Shapes -------------------------------------------------------------------------------------------


class MeSerializer(serializers.Serializer):
    """The caller's account and role."""

    username = serializers.CharField()
    role = serializers.ChoiceField(
        Role.choices, help_text="The role of this request; a token's may be lower than the user's."
    )
    user_role = serializers.ChoiceField(Role.choices)
    token = serializers.CharField(
        allow_null=True, help_text="The token's name; null: logged in with a password."
    )


class TokenSerializer(serializers.ModelSerializer):
    """A token without its secret."""

    username = serializers.CharField(source="user.username")

    class Meta:
        model = Token
        fields = [
            "id",
            "username",
            "name",
            "role",
            "hint",
            "created_at",
            "expires_at",
            "revoked_at",
            "last_used_at",
        ]
        extra_kwargs = {
            "hint": {"help_text": "The first characters of the secret."},
            "last_used_at": {"help_text": "The time of the last use, to the minute."},
        }
        read_only_fields = fields


class NewTokenSerializer(TokenSerializer):
    """A new token with its secret, which is shown only once."""

    secret = serializers.SerializerMethodField()

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "secret"]

    def get_secret(self, token: Token) -> str:
        """The secret, passed by the view."""
        return str(self.context["secret"])


class TokenRequest(RequestSerializer):
    """A token to create for the caller's account."""

    name = serializers.CharField(max_length=100, help_text="The purpose of the token.")
    role = serializers.ChoiceField(Role.choices, default=services.TOKEN_ROLE)
    expires_at = serializers.DateTimeField(
        allow_null=True,
        required=False,
        help_text=(
            f"Its end; null: it has none; left out: after {services.TOKEN_LIFETIME.days} days."
        ),
    )


class UserSerializer(serializers.ModelSerializer):
    """An account."""

    email = serializers.CharField(help_text="The email address; empty: none.")
    role = serializers.ChoiceField(Role.choices, source="effective_role")

    class Meta:
        model = User
        fields = ["id", "username", "email", "role", "is_active", "date_joined", "last_login"]
        read_only_fields = fields


class NewUserSerializer(UserSerializer):
    """A new account with its generated password, which is shown only once."""

    password = serializers.SerializerMethodField()

    class Meta(UserSerializer.Meta):
        fields = [*UserSerializer.Meta.fields, "password"]

    def get_password(self, user: User) -> str:
        """The password, passed by the view."""
        return str(self.context["password"])


class UserRequest(RequestSerializer):
    """An account to create."""

    username = serializers.RegexField(services.USERNAME, max_length=services.USERNAME_LENGTH_MAX)
    email = serializers.EmailField(default="", allow_blank=True, max_length=254)
    role = serializers.ChoiceField(Role.choices, default=Role.VIEWER)


class UserChangeRequest(RequestSerializer):
    """Changes of an account; fields that are left out stay."""

    role = serializers.ChoiceField(Role.choices, required=False)
    is_active = serializers.BooleanField(required=False)


class TokenFilter(django_filters.FilterSet):
    """The filters of tokens."""

    user = django_filters.CharFilter(field_name="user__username", help_text="The account's name.")
    valid = TrueOrFalseFilter(
        method="by_revocation",
        help_text="`true`: tokens that are not revoked; `false`: revoked ones.",
    )
    role = ChoicesFilter(Role.choices)

    def by_revocation(self, tokens: QuerySet[Token], name: str, valid: bool) -> QuerySet[Token]:
        """The tokens that are not revoked, or the revoked ones."""
        return tokens.filter(revoked_at__isnull=valid)


class UserFilter(django_filters.FilterSet):
    """The filters of accounts."""

    is_active = TrueOrFalseFilter()
    role = ChoicesFilter(Role.choices)


# Views --------------------------------------------------------------------------------------------


class MeView(OneView):
    """A view of the caller's account."""

    serializer_class = MeSerializer

    @extend_schema(operation_id="me", tags=["accounts"], summary="Show your account and role")
    def get(self, request: Request) -> Response:
        """The account and the role under which this request runs."""
        token = request.auth if isinstance(request.auth, Token) else None
        who = {
            "username": account(request).get_username(),
            "role": role_of(request),
            "user_role": account(request).effective_role,
            "token": token and token.name,
        }
        return Response(self.get_serializer(who).data)


@list_schema("list_tokens", "List tokens", tag="accounts")
class TokensView(ListAPIView):
    """Your own tokens; for an admin, those of all accounts."""

    roles = {"GET": Role.OPERATOR, "POST": Role.OPERATOR}
    login_only = {"POST"}
    queryset = Token.objects.select_related("user")
    serializer_class = TokenSerializer
    filterset_class = TokenFilter
    orderings = {"id": ("id",)}
    default_ordering = "-id"

    def get_queryset(self) -> QuerySet[Token]:
        """The tokens that the caller may see."""
        return _visible(self.request)

    @extend_schema(
        operation_id="create_token",
        tags=["accounts"],
        summary="Create a token",
        request=TokenRequest,
        responses={201: NewTokenSerializer},
        examples=[
            OpenApiExample(
                "For a dashboard",
                {"name": "wallboard", "role": "viewer", "expires_at": "2030-01-01T00:00:00Z"},
                request_only=True,
            )
        ],
    )
    def post(self, request: Request) -> Response:
        """Create a token that acts for you, at most in your role.

        Only this response contains its secret. Needs a login: a token cannot create another one.
        """
        given = TokenRequest.read(request)
        token, secret = services.create_token(
            account(request),
            account(request),
            given["name"],
            Role(given["role"]),
            expires_at=given.get("expires_at", "default"),
            role_max=role_of(request),
        )
        made = NewTokenSerializer(token, context={"secret": secret})
        return Response(made.data, status=status.HTTP_201_CREATED)


class TokenView(OneView):
    """A view of one token."""

    roles = {"GET": Role.OPERATOR, "DELETE": Role.OPERATOR}
    login_only = {"DELETE"}
    queryset = Token.objects.select_related("user")
    serializer_class = TokenSerializer

    @extend_schema(operation_id="get_token", tags=["accounts"], summary="Show a token")
    def get(self, request: Request, id: int) -> Response:
        """One token, without its secret."""
        return Response(self.get_serializer(_token(request, id)).data)

    @extend_schema(
        operation_id="revoke_token",
        tags=["accounts"],
        summary="Revoke a token",
        responses={204: OpenApiResponse(description="The token is revoked.")},
    )
    def delete(self, request: Request, id: int) -> Response:
        """Revoke a token: requests with it are refused from now on. Idempotent.

        Needs a login: a leaked token must not end those of others.
        """
        services.revoke(account(request), _token(request, id))
        return Response(status=status.HTTP_204_NO_CONTENT)


@list_schema("list_users", "List accounts", tag="accounts")
class UsersView(ListAPIView):
    """All accounts."""

    roles = {"GET": Role.ADMIN, "POST": Role.ADMIN}
    login_only = {"POST"}
    queryset = User.objects.all()
    serializer_class = UserSerializer
    filterset_class = UserFilter
    orderings = {"username": ("username",), "id": ("id",)}
    default_ordering = "username"

    @extend_schema(
        operation_id="create_user",
        tags=["accounts"],
        summary="Create an account",
        request=UserRequest,
        responses={201: NewUserSerializer},
        examples=[
            OpenApiExample(
                "An operator", {"username": "mara", "role": "operator"}, request_only=True
            )
        ],
    )
    def post(self, request: Request) -> Response:
        """Create an account. Only this response contains its generated password. Needs a login."""
        given = UserRequest.read(request)
        user, password = services.create_user(
            account(request), given["username"], Role(given["role"]), email=given["email"]
        )
        made = NewUserSerializer(user, context={"password": password})
        return Response(made.data, status=status.HTTP_201_CREATED)


class UserView(Versioned, OneView):
    """A view of one account."""

    version_of = ("role", "is_active")
    roles = {"GET": Role.ADMIN, "PATCH": Role.ADMIN}
    login_only = {"PATCH"}
    queryset = User.objects.all()
    serializer_class = UserSerializer

    @extend_schema(
        operation_id="get_user", tags=["accounts"], summary="Show an account", parameters=[ETAG]
    )
    def get(self, request: Request, id: int) -> Response:
        """One account, without its password."""
        user = _user(id)
        return self.tagged(user, Response(self.get_serializer(user).data))

    @extend_schema(
        operation_id="change_user",
        tags=["accounts"],
        summary="Change an account's role, close it or open it",
        parameters=[IF_MATCH, ETAG],
        request=UserChangeRequest,
        responses={200: UserSerializer},
    )
    def patch(self, request: Request, id: int) -> Response:
        """Change an account's role, close it or open it. The last admin stays. Needs a login."""
        user = _user(id)
        given = UserChangeRequest.read(request)
        with self.changing(request, lambda: services.locked(id)):
            if "role" in given:
                user = services.set_role(account(request), id, Role(given["role"]))
            if "is_active" in given:
                user = services.set_active(account(request), id, given["is_active"])
        return self.tagged(user, Response(self.get_serializer(user).data))


def _visible(request: Request) -> QuerySet[Token]:
    tokens = Token.objects.select_related("user")
    if role_of(request) is Role.ADMIN:
        return tokens
    return tokens.filter(user=account(request))


def _token(request: Request, token_id: int) -> Token:
    return existing(_visible(request).filter(pk=token_id), f"You have no token {token_id}.")


def _user(user_id: int) -> User:
    return existing(User.objects.filter(pk=user_id), f"There is no user {user_id}.")


urlpatterns = [
    path("me", MeView.as_view(), name="me"),
    path("tokens", TokensView.as_view(), name="tokens"),
    path("tokens/<int:id>", TokenView.as_view(), name="token"),
    path("users", UsersView.as_view(), name="users"),
    path("users/<int:id>", UserView.as_view(), name="user"),
]
