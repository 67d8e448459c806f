"""The pages of secrets: their list, and the forms that store and delete one."""
