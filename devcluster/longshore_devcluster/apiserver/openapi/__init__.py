"""OpenAPI documents, generated from the type table and the custom resources."""
