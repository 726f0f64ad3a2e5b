"""Search in a collection with a trained model: a text finds images, an image finds captions.

DIR/index/index.json     what is searched, and the measured recall; written last
DIR/index/images.npy     one vector for each image
DIR/index/texts.npy      one vector for each caption
DIR/index/images.faiss   of large collections, an approximate index; likewise texts.faiss
DIR/index/model          of an audit, its scorer; of a cross-attention model, the projection for candidates

DIR is the folder of a run or of an audit. The index finds candidates; the model itself scores and orders them.
"""
