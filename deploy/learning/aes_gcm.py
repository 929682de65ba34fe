"""AES-256-GCM with OpenSSL's libcrypto, which comes with Python or the system. Needs no package."""

import ctypes
import ctypes.util

TAG_BYTES = 16
_GET_TAG, _SET_TAG = 0x10, 0x11


class DecryptError(ValueError):
    """The bytes were encrypted with another key, or changed."""


def _load():
    names = ["libcrypto.so.3", "libcrypto.so.1.1", ctypes.util.find_library("crypto")]
    for name in names:
        try:
            library = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if library is not None:
            break
    else:
        raise OSError(f"OpenSSL's libcrypto is not there, tried {', '.join(filter(None, names))}")
    library.EVP_CIPHER_CTX_new.restype = ctypes.c_void_p
    library.EVP_CIPHER_CTX_free.argtypes = [ctypes.c_void_p]
    library.EVP_aes_256_gcm.restype = ctypes.c_void_p
    pointers = [ctypes.c_void_p] * 3 + [ctypes.c_char_p] * 2
    data = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.c_char_p, ctypes.c_int]
    for kind in ("Encrypt", "Decrypt"):
        getattr(library, f"EVP_{kind}Init_ex").argtypes = pointers
        getattr(library, f"EVP_{kind}Update").argtypes = data
        getattr(library, f"EVP_{kind}Final_ex").argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int)]
    library.EVP_CIPHER_CTX_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_char_p]
    return library


_library = None


def _run(kind, key, nonce, associated, text, tag):
    """(the text, its tag); None in place of the text if libcrypto refuses."""
    global _library
    if _library is None:
        _library = _load()
    if len(key) != 32 or len(nonce) != 12:
        raise ValueError(f"a key of {len(key)} and a nonce of {len(nonce)} bytes, expected 32 and 12")
    context = _library.EVP_CIPHER_CTX_new()
    if not context:
        raise MemoryError("libcrypto has no memory")
    try:
        init, update, final = (getattr(_library, f"EVP_{kind}{part}") for part in ("Init_ex", "Update", "Final_ex"))
        out, length, rest = ctypes.create_string_buffer(len(text) + 16), ctypes.c_int(), ctypes.c_int()
        done = init(context, _library.EVP_aes_256_gcm(), None, key, nonce) == 1
        done = done and update(context, None, ctypes.byref(length), associated, len(associated)) == 1
        done = done and update(context, out, ctypes.byref(length), text, len(text)) == 1
        if kind == "Decrypt":
            done = done and _library.EVP_CIPHER_CTX_ctrl(context, _SET_TAG, TAG_BYTES, tag) == 1
        tail = ctypes.create_string_buffer(16)
        done = done and final(context, tail, ctypes.byref(rest)) == 1
        if kind == "Encrypt":
            made = ctypes.create_string_buffer(TAG_BYTES)
            done = done and _library.EVP_CIPHER_CTX_ctrl(context, _GET_TAG, TAG_BYTES, made) == 1
            tag = made.raw
        return (out.raw[: length.value] if done else None), tag
    finally:
        _library.EVP_CIPHER_CTX_free(context)


def decrypt(key, nonce, associated, body):
    """The text of `body`, whose last 16 bytes are its tag."""
    if len(body) < TAG_BYTES:
        raise DecryptError("shorter than a tag")
    text, _ = _run("Decrypt", key, nonce, associated, body[:-TAG_BYTES], body[-TAG_BYTES:])
    if text is None:
        raise DecryptError("not of this key, or changed")
    return text


def encrypt(key, nonce, associated, text):
    """`text` encrypted, and its tag."""
    body, tag = _run("Encrypt", key, nonce, associated, text, b"")
    if body is None:
        raise OSError("libcrypto does not encrypt with AES-256-GCM")
    return body + tag
