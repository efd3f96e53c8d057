"""How numbers travel in fewer bytes, wherever they travel: between workers (collectives) and to servers (store).

    codec     AbstractCodec: encode, decode, add; with its state handed in and out; AsTheyAre is the identity
    rounding  bfloat16 and int8: every node of the tree of sums is rounded, whoever adds it
    rounded   the codecs that do so
    words     their names, as users write them; choice: from what a user asked for to a codec
    shapes    arrays by type and size, as a receiver expects them

Whoever sends and whoever receives have the same codec from the same script; nothing on the wire tells it.
"""
