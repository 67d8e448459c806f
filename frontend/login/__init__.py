"""The pages to log in and out, for the admin site as well."""
