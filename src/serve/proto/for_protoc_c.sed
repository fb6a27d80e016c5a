# The same messages for protoc-c, which does not know proto3's `optional` and hands strings out without their length.
# On the wire an optional field is a oneof with one member, and a string is bytes.
s/^\( *\)optional \([a-z0-9]*\) \([a-z0-9_]*\) = \([0-9]*\);/\1oneof _\3 { \2 \3 = \4; }/
s/^\( *\)string \([a-z0-9_]*\) = /\1bytes \2 = /
