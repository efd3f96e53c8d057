"""How numbers travel in fewer bytes, wherever they travel: between workers (collectives) and to servers (store).

    codec    AbstractCodec: encode, decode, add; with its state handed in and out. So far there is only AsTheyAre
    shapes   arrays by type and size, as a receiver expects them

Whoever sends and whoever receives have the same codec from the same script; nothing on the wire tells it.
"""
