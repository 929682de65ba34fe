"""The messages of Tandem's protocol, made by protoc: `from tandem.v1 import generation_pb2`."""
