"""One e-mail, by Django's backend."""

import smtplib

from django.conf import settings
from django.core.mail import EmailMessage

from controlplane.deliveries.machine import Meaning
from controlplane.deliveries.receivers.base import Mail
from controlplane.deliveries.sending.outcome import Outcome, failed


def is_configured() -> bool:
    """Whether a server for e-mail is set."""
    return bool(settings.EMAIL_HOST)


def send(mail: Mail) -> Outcome:
    """Send a mail to all of its recipients."""
    if not is_configured():
        return failed("no server for e-mail is set; set EMAIL_HOST")
    message = EmailMessage(
        mail.subject, mail.text, to=list(mail.recipients), headers=dict(mail.headers)
    )
    try:
        message.send()
    except (OSError, smtplib.SMTPException) as error:
        return failed(f"the mail server {settings.EMAIL_HOST} did not take it: {error}")
    return Outcome(meaning=Meaning.DELIVERED)
