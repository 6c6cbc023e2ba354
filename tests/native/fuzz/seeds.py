"""Write the texts that the fuzz targets begin with: ``python seeds.py FOLDER``."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

READ = "GATTACAGATTACANNacgtryGATTACAGATTACA"


def fastq(name: str, bases: str = READ, quality: str = "I", end: str = "\n") -> str:
    """Return a record."""
    return f"@{name}{end}{bases}{end}+{end}{quality * len(bases)}{end}"


def bam(
    name: str,
    cigar: list[tuple[int, str]],
    bases: str,
    flag: int = 0,
    reference: int = 0,
    position: int = 10,
    mate: tuple[int, int] = (-1, -1),
    quality: int = 30,
    tags: bytes = b"",
) -> bytes:
    """Return a record without its length."""
    codes = ["=ACMGRSVTWYHKDBN".index(c) for c in bases]
    codes += [0] * (len(codes) % 2)
    return (
        struct.pack("<iiBBHHHiiii", reference, position, len(name) + 1, 60, 4680, len(cigar), flag,
                    len(bases), *mate, 0)
        + name.encode() + b"\0"
        + b"".join(struct.pack("<I", n << 4 | "MIDNSHP=X".index(op)) for n, op in cigar)
        + bytes(a << 4 | b for a, b in zip(codes[::2], codes[1::2], strict=True))
        + bytes([quality] * len(bases))
        + tags
    )  # fmt: skip


def bgzf_file(records: bytes) -> bytes:
    """Return a BAM file of records, whose references are k141_0, b and c."""
    references = [(b"k141_0\0", 5000), (b"b\0", 100), (b"c\0", 40)]
    text = b"".join(b"@SQ\tSN:%s\tLN:%d\n" % (name[:-1], n) for name, n in references)
    header = b"BAM\1" + struct.pack("<i", len(text)) + text + struct.pack("<i", len(references))
    for name, n in references:
        header += struct.pack("<i", len(name)) + name + struct.pack("<i", n)
    file = b""
    for data in (header, records[:50], records[50:], b""):
        deflate = zlib.compressobj(1, zlib.DEFLATED, -15)
        body = deflate.compress(data) + deflate.flush()
        file += struct.pack("<4BI2BH2BHH", 31, 139, 8, 4, 0, 0, 255, 6, 66, 67, 2, len(body) + 25)
        file += body + struct.pack("<II", zlib.crc32(data), len(data))
    return file


def paf(name: str, strand: str, *tags: str, start: int = 0, target: str = "k141_0") -> str:
    """Return a line."""
    fields = [name, "100", str(start), "90", strand, target, "5000", "17", "107", "85", "90", "60"]
    return "\t".join([*fields, *tags]) + "\n"


CONTIGS = {
    "plain": ">a\nACGT\n>b x y\nACGTACGT\nAC\n",
    "megahit": ">k141_0 flag=1 multi=5.0000 len=4\nACGT\n>k141_1 flag=0 multi=2.5 len=0\n",
    "spades": ">NODE_1_length_500_cov_12.5\nACGTNNNN\n>NODE_2_length_4_cov_1e2_x\nAC-T",
    "metahipmer": ">Contig7 12.5\nACGT\n>scaffold_7 3\nACGT\n>c depth=1.5\nA\n>d depth 7\nC\n",
    "dlasm": ">a members=a+ circular=yes depth=2.00\nACGT\n>b circular=yes\tx circular=yesx\nA\n",
    "quirks": "\r\n\n> a \t\r\nACgtN.ryRY\r\n\r\n>empty\n\n>last\tx\nACGT\r",
    "faults": ">a\nACGT\n>a\nACGT\n>b multi=-1\nAC\rGT\n>\nA CGT\n@x\n",
}
READS = {
    "fastq": fastq("r/1") + fastq("r/2", "ACGT") + fastq("empty", ""),
    "pairs": fastq("a_1 1:N:0") + fastq("a_2") + fastq("b.1") + fastq("b.2") + fastq("c") * 2,
    "crlf": fastq("r/1 x", end="\r\n") + fastq("r/2", "", end="\r\n") + "\r\n\n",
    "phred64": fastq("r", quality="h") + fastq("s", quality="B"),
    "cut": (fastq("r") + fastq("s"))[:-12],
    "fasta": ">a\nACGT\nAC\n\n>b x\n\n>c\r\nacgtN\r\n>d\nA",
    "blank": "\r\n\r>a\nACGT\n\n\n",
    "faults": fastq("r") + "\n" + fastq("s", "AC-T") + "@t\nACGT\n+\nII\n>u\nACGT\n",
    "wrapped": "@r\nACGT\nACGT\n+\nIIIIIIII\n",
}
DEPTHS = {
    "metabat": "k141_0\t1875\t5.25\t5.25\t1.5\nk141_1\t4\t0\t0\t0\nother\t9\t1e2\t1e2\t3\n",
    "columns": "a\ta\ta\ta\n1.5\tk141_1\t2\t3\n2.99999999999999999\ta\tb c\tk141_1\t5\n",
    "quirks": "\r\nk141_0\t.5\t5.\t+1\t1e-400\r\n\nk141_1\t1e400\tinf\tnan\t-0\r\n",
    "numbers": "2.99999999999999999",
    "zeros": "0000000000000000002.99999999999999999",
    "exponent": "29999999999999999999e-19",
    "twice": "k141_0\t1\t1\t1\t1\nk141_0\t1\t1\t1\t1\n",
}
_READS = f"r1 {READ} {'I' * len(READ)} r2 ACGT #5I~"
DUMP = {
    "one": f"a ACGTNryA 1.5 1 1 {_READS}\n",
    "blanks": f"a\tACGT  2 0 2 {_READS} \t\r\nb A 0 0 0\r\n\n\n",
    "many": "".join(f"c{i} ACGTACGT {i}.5 0 {i % 3 // 2 * 2} {_READS if i % 3 == 2 else ''}\n"
                    for i in range(100)),
    "faults": f"a ACGT 1 2 1 {_READS}\n",
    "twice": "a A 1 0 0\n" * 2,
    "after_blank": "a A 1 0 0\n\nb A 1 0 0\n",
    "late_fault": "".join(f"c{i} A 1 0 0\n" for i in range(70)) + "c3 A 1 0 0\nd ! 1 0 0\n",
}  # fmt: skip
PAF = {
    "tags": paf("r/1", "+", "tp:A:P", "cm:i:9", "s1:i:80", "AS:i:-170", "cg:Z:90M")
    + paf("r/2", "-", "tp:A:S", "AS:i:7"),
    "rough": paf("r", "+", "s1:i:80"),
    "unmapped": "r\t100\t0\t0\t*\t*\t0\t0\t0\t0\t0\t0\n\n" + paf("s", "-", start=5),
    "crlf": paf("r", "+").replace("\n", "\r\n") + paf("r_2", "-", target="")[:-1],
    "few_fields": paf("r", "+") + "r\t1\t2\n",
    "outside": paf("r", "+", start=91),
    "no_number": paf("r", "+", "AS:i:x") + paf("r", "?"),
}
RECORDS = {
    "mapped": [
        bam("r/1", [(5, "S"), (20, "M")], READ[:25].upper(), 0x63, 0, 0, (0, 100)),
        bam("r/2", [(20, "="), (2, "D"), (4, "I"), (1, "X"), (3, "H")], READ[:25].upper(), 0x93,
            1, 90, (0, 0), tags=b"ASi\1\0\0\0"),
        bam("s", [(10, "M"), (9, "N"), (1, "P"), (9, "M"), (6, "S")], READ[:25].upper(), 0x10, 2,
            4980, quality=255),
    ],
    "unmapped": [bam("u", [], "ACG", 0x4D, -1, -1), bam("u", [], "", 0x8D, 0, 5, (0, 5))],
    "secondary": [
        bam("r", [(4, "M")], "ACGT"),
        bam("r", [(4, "M")], "", 0x100),
        bam("r", [(2, "H"), (2, "M")], "AC", 0x800),
    ],
    "long_cigar": [bam("r", [(4, "S"), (60, "N")], "ACGT")],
    "faults": [bam("r", [(4, "M")], "ACGT"), bam("r", [(5, "M")], "ACGT"),
               bam("r", [(4, "M")], "ACGT", reference=3)],
}  # fmt: skip


def seeds() -> dict[str, dict[str, bytes]]:
    """Return the texts of each target, by name."""
    texts = {"contigs": CONTIGS, "reads": READS, "depths": DEPTHS, "dump": DUMP, "paf": PAF}
    found = {
        target: {name: text.encode() for name, text in of.items()} for target, of in texts.items()
    }
    found["bam"] = {}
    for name, records in RECORDS.items():
        lengths = [struct.pack("<i", len(record)) + record for record in records]
        found["bam"][name] = b"".join(lengths)
        found["bam"][f"{name}_lengths"] = b"\1" + b"".join(
            bytes([len(record)]) + record for record in records
        )
    return found


def main() -> None:
    """Write a folder of seeds for each target."""
    for target, texts in seeds().items():
        folder = Path(sys.argv[1], target)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_bytes(text)


if __name__ == "__main__":
    main()
