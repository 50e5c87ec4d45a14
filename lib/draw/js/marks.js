// Marks as Python laid them out, with hover and keys: for pictures that need nothing else alive.

export function picture(data) {
  const marks = data.marks.map((mark, id) => ({ ...mark, id: mark.about ? id : undefined }));
  return {
    title: data.title,
    summary: data.summary,
    state: {},
    // Narrower than it was laid out, it is squeezed sideways; letters stay as they are.
    layout(state, width) {
      const f = Math.min(1, width / data.width);
      const squeezed = (mark) => ({
        ...mark,
        x: mark.x * f,
        w: mark.w * f,
        points: mark.points?.map(([x, y]) => [x * f, y]),
      });
      return { marks: f === 1 ? marks : marks.map(squeezed), height: data.height };
    },
  };
}
