// Marks as Python laid them out, with hover and keys: for pictures that need nothing else alive.

export function picture(data) {
  const marks = data.marks.map((mark, id) => ({ ...mark, id: mark.about ? id : undefined }));
  return {
    title: data.title,
    summary: data.summary,
    state: {},
    // Narrower than it was laid out, it is squeezed sideways, right of its names; letters stay as
    // they are, and go where there is no room for them.
    layout(state, width) {
      const left = data.left, f = Math.min(1, (width - left) / (data.width - left));
      const at = (x) => (x > left ? left + (x - left) * f : x);
      const squeezed = (mark) => ({
        ...mark,
        x: at(mark.x),
        w: mark.w * f,
        points: mark.points?.map(([x, y]) => [at(x), y]),
      });
      const fits = (mark) => !mark.room || mark.text.length * style.letter <= mark.room * f;
      const narrow = () => marks.map((mark) => (mark.x > left || mark.points ? squeezed(mark) : mark));
      return { marks: f === 1 ? marks : narrow().filter(fits), height: data.height };
    },
  };
}
