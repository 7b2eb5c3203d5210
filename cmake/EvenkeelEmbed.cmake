# cmake -DINPUT=file -DOUTPUT=header -DNAME=array -P EvenkeelEmbed.cmake: a text file as an array of C. Bytes and not
# a string, because C11 promises no more than 4,095 characters of one.
file(READ "${INPUT}" bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes
       "${bytes}")
file(WRITE "${OUTPUT}" "static const char ${NAME}[] = {\n${bytes}0};\n")
