"""The ratios of a run as one SVG: a bar per row, how many times better than the kernel, on a logarithmic scale."""

import math
from xml.sax.saxutils import escape

LABEL, BAR, HEIGHT, TOP = 130, 520, 18, 46
COLOURS = {True: "#2a7f4f", False: "#b5412e", None: "#6b7280"}


def better(record):
    """How many times better than the kernel, above 1 ours is; None: no ratio."""
    ratio = record["ratio"]
    if record["absolute"] or not ratio:
        return None
    return 1 / ratio if record["better"] == "less" else ratio


def draw(records, title):
    bars = [(r, better(r)) for r in records if better(r)]
    low = min([0.5, *(value for _, value in bars)])
    high = max([2.0, *(value for _, value in bars)]) * 1.1

    def x(value):
        return LABEL + BAR * math.log(value / low) / math.log(high / low)

    height = TOP + HEIGHT * len(bars) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + BAR + 150}" height="{height}" font-family="sans-serif" '
           f'font-size="11">', '<rect width="100%" height="100%" fill="white"/>',
           '<text x="8" y="16" font-size="13">times better than the kernel (median of the ratios; green: target met)</text>',
           f'<text x="8" y="32" fill="#555">{escape(title)}</text>']
    for tick in (0.5, 1, 2, 5, 10, 20, 50):
        if low <= tick <= high:
            at = x(tick)
            out.append(f'<line x1="{at:.1f}" y1="{TOP - 6}" x2="{at:.1f}" y2="{height - 22}" stroke="{"#111" if tick == 1 else "#ddd"}"/>'
                       f'<text x="{at:.1f}" y="{height - 8}" text-anchor="middle">{tick:g}</text>')
    for i, (record, value) in enumerate(bars):
        y = TOP + i * HEIGHT
        begin, end = sorted((x(1), x(value)))
        out.append(f'<text x="8" y="{y + 12}">{escape(record["row"])}</text>'
                   f'<rect x="{begin:.1f}" y="{y + 2}" width="{max(end - begin, 1):.1f}" height="{HEIGHT - 5}" '
                   f'fill="{COLOURS[record["met"]]}"/>'
                   f'<text x="{LABEL + BAR + 8}" y="{y + 12}">{value:.2f} (n={len(record["ours"])})</text>')
    return "\n".join([*out, "</svg>", ""])
